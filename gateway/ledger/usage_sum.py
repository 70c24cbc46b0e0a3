# SPDX-License-Identifier: Apache-2.0
"""Sums over the ledger's requests."""

from typing import NamedTuple

GROUPS = ("day", "tenant", "key", "model", "answered_by", "tier", "release", "endpoint", "finish")


class UsageSum(NamedTuple):
    """The sums over the requests of one group.

    Attributes:
        group: the group's values, in the order in which the columns were named; a day is days since 1970.
        failed: requests that ended with an error, a caller's leaving among them; not the unsettled ones.
        cached_tokens: of the prompts' tokens, as far as engines tell.
        mean_ttft_s: of answers that streamed; None: none did.
        cost_nano_usd: in billionths of a US dollar.
        saved_nano_usd: what tiers and kept answers saved, in the same.
    """

    group: tuple[object, ...]
    requests: int
    failed: int
    unsettled: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    mean_ttft_s: float | None
    cost_nano_usd: int
    saved_nano_usd: int
