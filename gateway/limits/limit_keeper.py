# SPDX-License-Identifier: Apache-2.0
"""The keepers of the use of limits: the memory of one process, or Redis for several."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from gateway.limits.key_limits import KeyLimits


class Reserved(Protocol):
    """The part of a key's limits that one request has."""

    def settle(self, tokens: int) -> None:
        """Note what the request has taken so far; one that never says so has taken nothing."""

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers about the limits, with this request in them."""


class LimitKeeper(Protocol):
    """The use of all keys: `Limiter`, or `RedisLimiter`."""

    def reserved(self, key_id: str, limits: KeyLimits, *, tokens: int) -> AbstractAsyncContextManager[Reserved]:
        """Reserve one request and its tokens to the end of the block, and take what it took there.

        Args:
            tokens: estimate of the prompt's and the answer's.

        Raises:
            ApiError: 429: a limit is reached; 503: the limits cannot be asked now. What may have been taken comes back.
        """
