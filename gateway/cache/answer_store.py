# SPDX-License-Identifier: Apache-2.0
"""The places of kept answers: the memory of this process, or a Redis for several gateways."""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from redis.asyncio import Redis  # needs an extra

MAX_ANSWER_BYTES = 1 << 20  # a longer answer is not kept
_PREFIX = "trireme:answers:"
_AWAY_S = 1.0  # between two tries, while Redis is away
_log = logging.getLogger("trireme.gateway")


class AnswerStore(Protocol):
    """A place of answers by their names; each is forgotten after some time."""

    async def get(self, name: str) -> bytes | None:
        """Return an answer; None: there is none, or the place is away."""
        ...

    async def put(self, name: str, data: bytes) -> None:
        """Keep an answer; do nothing where the place is away."""
        ...


class AnswersInMemory:
    """Answers in the memory of this process, those that were asked for of late.

    Args:
        ttl_s: each is forgotten after so long.
        max_bytes: of all; the one that nobody has asked for the longest goes first.
    """

    def __init__(self, *, ttl_s: float, max_bytes: int, now_s: Callable[[], float] = time.monotonic) -> None:
        self._ttl_s, self._max_bytes, self._now_s = ttl_s, max_bytes, now_s
        self._kept: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._num_bytes = 0

    async def get(self, name: str) -> bytes | None:
        """Return an answer; None: there is none."""
        until_s, data = self._kept.get(name, (0.0, b""))
        if not data:
            return None
        if self._now_s() >= until_s:
            self._drop(name)
            return None
        self._kept.move_to_end(name)
        return data

    async def put(self, name: str, data: bytes) -> None:
        """Keep an answer."""
        if name in self._kept:
            self._drop(name)
        self._kept[name] = (self._now_s() + self._ttl_s, data)
        self._num_bytes += _size(name, data)
        while self._num_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, name: str) -> None:
        _, data = self._kept.pop(name)
        self._num_bytes -= _size(name, data)


class AnswersInRedis:
    """Answers in a Redis, which several gateways share; its memory is bounded by its own `maxmemory`.

    A Redis that is away is asked again after a second, and costs nobody an answer.
    """

    def __init__(self, redis: "Redis", *, ttl_s: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._redis, self._ttl_ms, self._now_s = redis, max(1, round(1000 * ttl_s)), now_s
        self._away_until_s = 0.0

    async def get(self, name: str) -> bytes | None:
        """Return an answer; None: there is none, or Redis is away."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - needs an extra

        if self._now_s() < self._away_until_s:
            return None
        try:
            data = await self._redis.get(_PREFIX + name)
        except (RedisError, OSError) as exc:
            self._note_away(exc)
            return None
        return data if isinstance(data, bytes) else None

    async def put(self, name: str, data: bytes) -> None:
        """Keep an answer; do nothing where Redis is away."""
        from redis.exceptions import RedisError  # noqa: PLC0415 - needs an extra

        if self._now_s() < self._away_until_s:
            return
        try:
            await self._redis.set(_PREFIX + name, data, px=self._ttl_ms)
        except (RedisError, OSError) as exc:
            self._note_away(exc)

    def _note_away(self, exc: Exception) -> None:
        self._away_until_s = self._now_s() + _AWAY_S
        _log.warning("the Redis of answers is away: %s", exc)


def _size(name: str, data: bytes) -> int:
    return len(name) + len(data) + 200  # what Python has beside them
