# SPDX-License-Identifier: Apache-2.0
"""What a rollout and its clients tell each other, as typed data; clients need nothing else of a rollout."""

from typing import Annotated

import msgspec

from clients.rollout.routing.split import Slice
from clients.rollout_gate.outcome import Outcome, Word


class Mirror(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of requests at the places below `share` a copy goes to the candidate, and its answer to nobody.

    Attributes:
        max_in_flight: copies of the client that is told; of what is more none is sent.
    """

    share: float
    model: str
    url: str = ""
    max_in_flight: int


class SplitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a client goes by until its lease is over; the last slice ends at 1."""

    rollout: int
    step: int
    salt: str
    stable_model: str
    lease_s: float
    slices: tuple[Slice, ...]
    mirror: Mirror | None = None


class JudgementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What another program that drives traffic goes by: where the rollout is, and the gate's verdict of this step."""

    rollout: int
    phase: str
    step: int
    share: float
    verdict: str
    reason: str
    num_requests: int


class OutcomeBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client tells; `batch` is a name that no other has."""

    rollout: int
    step: Annotated[int, msgspec.Meta(ge=0, le=1000)]
    batch: Word
    outcomes: list[Outcome]
