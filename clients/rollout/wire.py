# SPDX-License-Identifier: Apache-2.0
"""What a rollout and its clients tell each other, as typed data; clients need nothing else of a rollout."""

import msgspec

from clients.rollout.outcome import Outcome


class SplitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a client goes by until its lease is over."""

    rollout: int
    step: int
    salt: str
    share: float
    stable_model: str
    candidate_model: str
    lease_s: float


class OutcomeBatch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client tells; `batch` is a name that no other has."""

    rollout: int
    step: int
    batch: str
    outcomes: list[Outcome]
