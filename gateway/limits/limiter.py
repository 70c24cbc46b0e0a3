# SPDX-License-Identifier: Apache-2.0
"""The limits of keys in one gateway process: what a request may take is reserved, and settled by what it took."""

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gateway.limits.key_limits import KeyLimits
from gateway.limits.refusals import REQUESTS, TOKENS, BucketState, limit_headers, too_many_run, used_up
from gateway.limits.token_bucket import TokenBucket

_MAX_KEYS = 100_000  # of those that came last; one that is forgotten begins with full buckets


class Limiter:
    """The use of all keys.

    Args:
        now_s: seconds of a clock that nobody sets.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._uses: OrderedDict[str, _Use] = OrderedDict()

    def reserve(self, key_id: str, limits: KeyLimits, *, tokens: int) -> "Reservation":
        """Take one request and its tokens from a key's limits.

        Args:
            tokens: estimate of the prompt's and the answer's.

        Raises:
            ApiError: 429: a limit is reached; nothing was taken.
        """
        use, now_s = self._use(key_id, limits), self._now_s()
        wanted = {REQUESTS: 1, TOKENS: tokens}
        for name, bucket in use.buckets.items():
            amount = min(wanted[name], bucket.per_minute)  # what never fits goes when all is there
            if (wait_s := bucket.wait_s(amount, now_s)) > 0:
                raise used_up(key_id, name, bucket.per_minute, wait_s, use.headers(now_s))
        if limits.streams is not None and use.num_running >= limits.streams:
            raise too_many_run(key_id, use.num_running, use.headers(now_s))
        for name, bucket in use.buckets.items():
            bucket.take(wanted[name], now_s)
        use.num_running += 1
        return Reservation(use, tokens, self._now_s)

    @asynccontextmanager
    async def reserved(self, key_id: str, limits: KeyLimits, *, tokens: int) -> "AsyncIterator[Reservation]":
        """Reserve one request and its tokens to the end of the block.

        Raises:
            ApiError: 429: a limit is reached.
        """
        with self.reserve(key_id, limits, tokens=tokens) as reservation:
            yield reservation

    def _use(self, key_id: str, limits: KeyLimits) -> "_Use":
        use = self._uses.get(key_id)
        if use is None or use.limits != limits:
            running = 0 if use is None else use.num_running
            use = self._uses[key_id] = _Use(limits, self._now_s(), num_running=running)
        self._uses.move_to_end(key_id)
        while len(self._uses) > _MAX_KEYS:
            self._uses.popitem(last=False)
        return use


class _Use:
    def __init__(self, limits: KeyLimits, now_s: float, *, num_running: int) -> None:
        self.limits, self.num_running = limits, num_running
        named = {REQUESTS: limits.requests_per_minute, TOKENS: limits.tokens_per_minute}
        self.buckets = {name: TokenBucket(most, now_s) for name, most in named.items() if most is not None}

    def headers(self, now_s: float) -> dict[str, str]:
        """Return OpenAI's headers about the limits."""
        return limit_headers([
            BucketState(name, bucket.per_minute, bucket.left(now_s), bucket.full_in_s(now_s))
            for name, bucket in self.buckets.items()
        ])  # fmt: skip


class Reservation:
    """The part of a key's limits that one request has, until it ends.

    Use it as a context manager: a request that ends in any way gives its place back, and pays what it took.
    """

    def __init__(self, use: _Use, tokens: int, now_s: Callable[[], float]) -> None:
        self._use, self._reserved, self._now_s = use, tokens, now_s
        self._taken: int | None = None

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        self._use.num_running -= 1
        if TOKENS in self._use.buckets:
            taken = 0 if self._taken is None else self._taken
            self._use.buckets[TOKENS].take(taken - self._reserved, self._now_s())

    def settle(self, tokens: int) -> None:
        """Note what the request has taken so far; one that never says so has taken nothing."""
        self._taken = tokens

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers about the limits, with this request in them."""
        return self._use.headers(self._now_s())
