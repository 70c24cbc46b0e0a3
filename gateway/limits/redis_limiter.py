# SPDX-License-Identifier: Apache-2.0
"""The limits of keys in Redis, for several gateways together, by Redis' own clock.

What `TokenBucket` does for one process is done here inside Redis, in one step for each request: nobody comes between
looking and taking. A running request has a place there, by its id, until it is settled: so a request is settled once,
however often its gateway says so. A place that is not renewed counts as no stream any more, and a gateway that is
killed gives its streams back.
"""

import asyncio
import contextlib
import logging
import math
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple, Self

from redis.asyncio import Redis
from redis.exceptions import RedisError

from clients.openai_api.api_error import NOT_BEGUN, ApiError
from gateway.limits.key_limits import KeyLimits
from gateway.limits.limit_keeper import Reserved
from gateway.limits.limiter import Limiter
from gateway.limits.refusals import REQUESTS, TOKENS, BucketState, limit_headers, too_many_run, used_up

_PREFIX = "trireme:limits:"
_PLACE_S = 30.0  # of a running request, unless its gateway renews it
_FORGOTTEN_S = 600.0  # after the end of a place: a request may still be settled until then
_AWAY_S = 1.0  # between two tries, while Redis is away
_MAX_UNSETTLED = 100_000
_log = logging.getLogger("trireme.gateway")

# Of one unit: how much is there now, from what was left when it was last looked at. Numbers go out as text, for Redis
# would cut them off to whole ones.
_BUCKETS = """
local parts = redis.call('TIME')
local now = tonumber(parts[1]) + tonumber(parts[2]) / 1e6
local function filled(unit, per_minute)
  local left = tonumber(redis.call('HGET', KEYS[1], unit)) or per_minute
  local seen = tonumber(redis.call('HGET', KEYS[1], unit .. '_seen_s')) or now
  return math.min(left + math.max(0, now - seen) * per_minute / 60, per_minute)
end
local function kept(unit, per_minute, left)
  left = math.min(left, per_minute)
  redis.call('HSET', KEYS[1], unit, string.format('%.17g', left), unit .. '_seen_s', string.format('%.17g', now))
  return (per_minute - left) * 60 / per_minute
end
local function expire(after_s)
  local ttl = redis.call('TTL', KEYS[1])
  if ttl < after_s then redis.call('EXPIRE', KEYS[1], math.ceil(after_s)) end
end
"""

# ARGV: requests a minute, tokens a minute, streams (0: no limit), tokens wanted, id of the request, seconds of its
# place, seconds after which a place is forgotten.
# Returns: what refuses, seconds to wait, requests left, tokens left, how many run.
_RESERVE = (
    _BUCKETS
    + """
local per_minute = {requests = tonumber(ARGV[1]), tokens = tonumber(ARGV[2])}
local wanted = {requests = 1, tokens = tonumber(ARGV[4])}
local streams, place, forgotten = tonumber(ARGV[3]), tonumber(ARGV[6]), tonumber(ARGV[7])
local left, refused, wait = {requests = 0, tokens = 0}, '', 0
for _, unit in ipairs({'requests', 'tokens'}) do
  if per_minute[unit] > 0 then
    left[unit] = filled(unit, per_minute[unit])
    local short = math.min(wanted[unit], per_minute[unit]) - left[unit]
    if short > 0 and refused == '' then refused, wait = unit, short * 60 / per_minute[unit] end
  end
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - forgotten)
local running = redis.call('ZCOUNT', KEYS[2], now, '+inf')
if streams > 0 and running >= streams and refused == '' then refused = 'streams' end
if refused == '' then
  for _, unit in ipairs({'requests', 'tokens'}) do
    if per_minute[unit] > 0 then
      left[unit] = left[unit] - wanted[unit]
      expire(kept(unit, per_minute[unit], left[unit]) + 60)
    end
  end
  redis.call('ZADD', KEYS[2], string.format('%.17g', now + place), ARGV[5])
  redis.call('EXPIRE', KEYS[2], math.ceil(place + forgotten))
end
return {refused, tostring(wait), tostring(left.requests), tostring(left.tokens), running}
"""
)

# ARGV: requests a minute, tokens a minute, requests and tokens to take beside those that were reserved (less than 0:
# they come back), id. Nothing where the request has no place: it is settled already, or was never reserved.
_SETTLE = (
    _BUCKETS
    + """
if redis.call('ZREM', KEYS[2], ARGV[5]) == 0 then return 0 end
for index, unit in ipairs({'requests', 'tokens'}) do
  local per_minute, more = tonumber(ARGV[index]), tonumber(ARGV[index + 2])
  if per_minute > 0 and more ~= 0 then
    expire(kept(unit, per_minute, filled(unit, per_minute) - more) + 60)
  end
end
return 1
"""
)

# ARGV: seconds of a place, seconds after which it is forgotten, ids of requests that run.
_RENEW = """
local parts = redis.call('TIME')
local now = tonumber(parts[1]) + tonumber(parts[2]) / 1e6
for index = 3, #ARGV do
  redis.call('ZADD', KEYS[2], 'XX', string.format('%.17g', now + tonumber(ARGV[1])), ARGV[index])
end
redis.call('EXPIRE', KEYS[2], math.ceil(tonumber(ARGV[1]) + tonumber(ARGV[2])))
"""


class _NotAskedError(RedisError):
    """A question that was not sent, for Redis was away a moment ago."""


class _Settlement(NamedTuple):
    """The amounts that a request takes beside what it has reserved, and of which Redis has not been told."""

    key_id: str
    limits: KeyLimits
    request_id: str
    requests: int
    tokens: int


class RedisLimiter:
    """The use of all keys in a Redis, inside an `async with`.

    Args:
        redis: the connections; whoever made them closes them.
        admits_when_away: while Redis is away, whether each gateway goes on by itself, with limits of its own; if not,
            keys with limits are refused.
        place_s: seconds for which a running request keeps its place without being renewed.
    """

    def __init__(
        self,
        redis: "Redis",
        *,
        admits_when_away: bool,
        place_s: float = _PLACE_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._admits, self._place_s, self._now_s = admits_when_away, place_s, now_s
        self._reserve, self._settle, self._renew = map(redis.register_script, (_RESERVE, _SETTLE, _RENEW))
        self._own = Limiter()
        self._away_until_s = -math.inf
        self._running: dict[str, set[str]] = {}  # ids of requests by their keys
        self._unsettled = deque[_Settlement](maxlen=_MAX_UNSETTLED)
        self._mending: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._mending = asyncio.create_task(self._mend_always())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._mending is not None
        self._mending.cancel()

    @contextlib.asynccontextmanager
    async def reserved(self, key_id: str, limits: KeyLimits, *, tokens: int) -> AsyncIterator[Reserved]:
        """Reserve one request and its tokens to the end of the block, and take what it took there.

        Raises:
            ApiError: 429: a limit is reached; 503: Redis is away.
        """
        reservation = await self._reserved(key_id, limits, tokens) if limits.has_rates else RedisReservation("", {})
        if reservation is None:
            with self._own.reserve(key_id, limits, tokens=tokens) as own:
                yield own
            return
        try:
            yield reservation
        finally:
            if reservation.request_id:
                self._end(key_id, reservation.request_id)
                more = reservation.tokens - tokens
                owed = _Settlement(key_id, limits, reservation.request_id, requests=0, tokens=more)
                await asyncio.shield(self._give_back(owed))

    async def _reserved(self, key_id: str, limits: KeyLimits, tokens: int) -> "RedisReservation | None":
        """Return what Redis has reserved; None: it is away, and this process goes on by itself."""
        request_id = secrets.token_hex(8)
        arguments = [*_numbers(limits), tokens, request_id, self._place_s, _FORGOTTEN_S]
        try:
            answer = await self._ask(self._reserve, key_id, arguments)
        except (RedisError, OSError, TimeoutError) as exc:
            if not isinstance(exc, _NotAskedError):
                self._take_back(key_id, limits, request_id, tokens)
            self._tell_away(exc)
            if self._admits:
                return None
            raise _nobody_knows() from exc
        except asyncio.CancelledError:
            self._take_back(key_id, limits, request_id, tokens)
            raise
        refused, wait_s, *left, num_running = answer
        headers = _headers(limits, dict(zip((REQUESTS, TOKENS), map(float, left), strict=True)))
        match refused.decode():
            case "":
                self._running.setdefault(key_id, set()).add(request_id)
                return RedisReservation(request_id, headers)
            case "streams":
                raise too_many_run(key_id, num_running, headers)
            case unit:
                raise used_up(key_id, unit, dict(_rates(limits))[unit], float(wait_s), headers)

    def _take_back(self, key_id: str, limits: KeyLimits, request_id: str, tokens: int) -> None:
        """Take back a reservation that Redis may have made, or may yet make, without an answer."""
        self._unsettled.append(_Settlement(key_id, limits, request_id, requests=-1, tokens=-tokens))

    def _end(self, key_id: str, request_id: str) -> None:
        ids = self._running[key_id]
        ids.discard(request_id)
        if not ids:
            del self._running[key_id]

    async def _give_back(self, owed: _Settlement) -> None:
        try:
            await self._tell(owed)
        except (RedisError, OSError, TimeoutError) as exc:
            self._unsettled.append(owed)
            self._tell_away(exc)

    async def _tell(self, owed: _Settlement) -> None:
        requests, tokens, _ = _numbers(owed.limits)
        arguments: list[str | int] = [requests, tokens, owed.requests, owed.tokens, owed.request_id]
        await self._settle(keys=_keys(owed.key_id), args=arguments)

    async def _ask(self, script: Any, key_id: str, arguments: list[Any]) -> Any:
        if self._now_s() < self._away_until_s:
            raise _NotAskedError("it was away a moment ago")
        answer = await script(keys=_keys(key_id), args=arguments)
        if self._away_until_s > -math.inf:
            self._away_until_s = -math.inf
            _log.info("Redis is back: limits are shared again")
        return answer

    async def _mend_always(self) -> None:
        """Renew the places of running requests, and tell Redis what it was not told."""
        renewed_s = self._now_s()
        while True:
            await asyncio.sleep(min(_AWAY_S, self._place_s / 3))
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                while self._unsettled:
                    await self._tell(self._unsettled[0])
                    self._unsettled.popleft()
                if self._now_s() - renewed_s >= self._place_s / 3:
                    renewed_s = self._now_s()
                    for key_id, ids in list(self._running.items()):
                        await self._renew(keys=_keys(key_id), args=[self._place_s, _FORGOTTEN_S, *ids])

    def _tell_away(self, exc: Exception) -> None:
        if self._away_until_s == -math.inf:
            then = "each gateway counts for itself" if self._admits else "keys with limits are refused"
            _log.error("Redis, which has the limits of keys, is away: %s; %s", str(exc) or repr(exc), then)
        if self._now_s() >= self._away_until_s:
            self._away_until_s = self._now_s() + _AWAY_S


class RedisReservation:
    """The part of a key's limits that one request has.

    Args:
        request_id: of its place; "": its key has no limits.
    """

    def __init__(self, request_id: str, headers: Mapping[str, str]) -> None:
        self.request_id, self.tokens = request_id, 0
        self._headers = dict(headers)

    def settle(self, tokens: int) -> None:
        """Note what the request has taken so far; one that never says so has taken nothing."""
        self.tokens = tokens

    def headers(self) -> dict[str, str]:
        """Return OpenAI's headers about the limits, with this request in them."""
        return self._headers


def _keys(key_id: str) -> list[str]:
    """Return Redis' keys of a key's buckets and running requests; the braces keep both on one node of a cluster."""
    name = f"{_PREFIX}{{{key_id}}}"
    return [name, f"{name}:running"]


def _rates(limits: KeyLimits) -> list[tuple[str, int]]:
    rates = ((REQUESTS, limits.requests_per_minute), (TOKENS, limits.tokens_per_minute))
    return [(unit, most) for unit, most in rates if most is not None]


def _numbers(limits: KeyLimits) -> list[int]:
    return [limits.requests_per_minute or 0, limits.tokens_per_minute or 0, limits.streams or 0]


def _headers(limits: KeyLimits, left: Mapping[str, float]) -> dict[str, str]:
    return limit_headers([
        BucketState(unit, most, max(0, int(left[unit])), (most - left[unit]) * 60 / most)
        for unit, most in _rates(limits)
    ])  # fmt: skip


def _nobody_knows() -> ApiError:
    return ApiError(
        "the limits of keys cannot be checked now; try again",
        code="unavailable",
        status=503,
        retry_after_s=_AWAY_S,
        headers={NOT_BEGUN: "true"},
    )
