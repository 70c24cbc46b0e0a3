# SPDX-License-Identifier: Apache-2.0
"""Answers to callers about their limits: OpenAI's headers, and the errors of limits that are reached."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from clients.openai_api.api_error import ApiError

REQUESTS, TOKENS = "requests", "tokens"  # the units of limits, as headers and messages name them
_CODE = "rate_limit_exceeded"
_TENANT = "tenant:"


def tenant_account(tenant: str) -> str:
    """Return the account of a tenant; that of a key is its id, in which there is no colon."""
    return _TENANT + tenant


def holder_of(account: str) -> str:
    """Return the holder of an account, as messages name it."""
    return f"tenant {account.removeprefix(_TENANT)}" if account.startswith(_TENANT) else "this key"


class BucketState(NamedTuple):
    """A limit with what is left of it.

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


def used_up(account: str, unit: str, per_minute: int, wait_s: float, headers: Mapping[str, str]) -> ApiError:
    """Return the error of an account's limit that is used up for some seconds."""
    return ApiError(
        f"{holder_of(account)} may take {per_minute} {unit} a minute, and they are used up; try again in "
        f"{math.ceil(wait_s)} s",
        code=_CODE,
        status=429,
        retry_after_s=wait_s,
        headers=headers,
    )


def too_many_run(account: str, num_running: int, headers: Mapping[str, str]) -> ApiError:
    """Return the error of an account that has as many running requests as it may."""
    return ApiError(
        f"{num_running} requests of {holder_of(account)} are running, which is its limit; try again when one has ended",
        code=_CODE,
        status=429,
        retry_after_s=1.0,
        headers=headers,
    )
