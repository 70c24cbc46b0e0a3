# SPDX-License-Identifier: Apache-2.0
"""Answers to callers about their limits: OpenAI's headers, and the errors of limits that are reached."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from clients.openai_api.api_error import ApiError

REQUESTS, TOKENS = "requests", "tokens"  # the units of limits, as headers and messages name them
_CODE = "rate_limit_exceeded"


class BucketState(NamedTuple):
    """How much is left of a limit.

    Attributes:
        unit: REQUESTS or TOKENS.
        full_in_s: seconds until all of a minute's worth is there.
    """

    unit: str
    per_minute: int
    left: int
    full_in_s: float


def limit_headers(states: list[BucketState]) -> dict[str, str]:
    """Return OpenAI's headers about limits."""
    found = {}
    for state in states:
        found[f"x-ratelimit-limit-{state.unit}"] = str(state.per_minute)
        found[f"x-ratelimit-remaining-{state.unit}"] = str(state.left)
        found[f"x-ratelimit-reset-{state.unit}"] = f"{state.full_in_s:.3f}s"
    return found


def used_up(unit: str, per_minute: int, wait_s: float, headers: Mapping[str, str]) -> ApiError:
    """Return the error of a limit that is used up for some seconds."""
    return ApiError(
        f"this key may take {per_minute} {unit} a minute, and they are used up; try again in {math.ceil(wait_s)} s",
        code=_CODE,
        status=429,
        retry_after_s=wait_s,
        headers=headers,
    )


def too_many_run(num_running: int, headers: Mapping[str, str]) -> ApiError:
    """Return the error of a key that has as many running requests as it may."""
    return ApiError(
        f"{num_running} requests of this key are running, which is its limit; try again when one has ended",
        code=_CODE,
        status=429,
        retry_after_s=1.0,
        headers=headers,
    )
