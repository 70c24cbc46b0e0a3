# SPDX-License-Identifier: Apache-2.0
"""The limits of keys in one gateway process: what a request may take is reserved, and settled by what it took."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable

from clients.openai_api.api_error import ApiError
from gateway.limits.key_limits import KeyLimits
from gateway.limits.token_bucket import TokenBucket

_MAX_KEYS = 100_000  # of those that came last; one that is forgotten begins with full buckets
_REQUESTS, _TOKENS = "requests", "tokens"


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
        wanted = {_REQUESTS: 1, _TOKENS: tokens}
        for name, bucket in use.buckets.items():
            amount = min(wanted[name], bucket.per_minute)  # what never fits goes when all is there
            if (wait_s := bucket.wait_s(amount, now_s)) > 0:
                raise _reached(name, bucket, wait_s, use.headers(now_s))
        if limits.streams is not None and use.num_running >= limits.streams:
            raise ApiError(
                f"{use.num_running} requests of this key are running, which is its limit; try again when one has ended",
                code="rate_limit_exceeded",
                status=429,
                retry_after_s=1.0,
                headers=use.headers(now_s),
            )
        for name, bucket in use.buckets.items():
            bucket.take(wanted[name], now_s)
        use.num_running += 1
        return Reservation(use, tokens, self._now_s)

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
        named = {_REQUESTS: limits.requests_per_minute, _TOKENS: limits.tokens_per_minute}
        self.buckets = {name: TokenBucket(most, now_s) for name, most in named.items() if most is not None}

    def headers(self, now_s: float) -> dict[str, str]:
        """Return OpenAI's headers about the limits."""
        found = {}
        for name, bucket in self.buckets.items():
            found[f"x-ratelimit-limit-{name}"] = str(bucket.per_minute)
            found[f"x-ratelimit-remaining-{name}"] = str(bucket.left(now_s))
            found[f"x-ratelimit-reset-{name}"] = f"{bucket.full_in_s(now_s):.3f}s"
        return found


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
        if _TOKENS in self._use.buckets:
            taken = 0 if self._taken is None else self._taken
            self._use.buckets[_TOKENS].take(taken - self._reserved, self._now_s())

    def settle(self, tokens: int) -> None:
        """Note what the request has taken so far; one that never says so has taken nothing."""
        self._taken = tokens

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers about the limits, with this request in them."""
        return self._use.headers(self._now_s())


def _reached(name: str, bucket: TokenBucket, wait_s: float, headers: dict[str, str]) -> ApiError:
    return ApiError(
        f"this key may take {bucket.per_minute} {name} a minute, and they are used up; try again in "
        f"{math.ceil(wait_s)} s",
        code="rate_limit_exceeded",
        status=429,
        retry_after_s=wait_s,
        headers=headers,
    )
