# SPDX-License-Identifier: Apache-2.0
"""The messages between a rollout and its clients, as typed data; clients need nothing else of a rollout."""

from typing import Annotated

import msgspec

from clients.rollout.routing.split import Slice
from ensemble_configs.split.outcome import Outcome, Word


class Mirror(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The shadow of a split: requests at places below `share` are copied to the candidate, and nobody sees its answers.

    Attributes:
        max_in_flight: copies in flight of the client that gets this answer; it sends no more.
    """

    share: float
    model: str
    url: str = ""
    max_in_flight: int


class SplitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The split that a client goes by until its lease is over; the last slice ends at 1."""

    rollout: int
    step: int
    salt: str
    stable_model: str
    lease_s: float
    slices: tuple[Slice, ...]
    mirror: Mirror | None = None


class JudgementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a rollout and the gate's verdict at this step, for other programs that drive traffic."""

    rollout: int
    phase: str
    step: int
    share: float
    verdict: str
    reason: str
    num_requests: int


class OutcomeBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The outcomes that a client reports; `batch` is a name that no other batch has."""

    rollout: int
    step: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    batch: Word
    outcomes: list[Outcome]
