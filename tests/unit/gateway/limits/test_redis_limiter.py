# SPDX-License-Identifier: Apache-2.0
"""Limits in a real Redis: what several gateways let through together, exact settlement, and a Redis that is away."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis
from redis_here import PASSWORD

from clients.openai_api.api_error import ApiError
from gateway import redis_place
from gateway.limits.key_limits import NO_LIMITS, KeyLimits
from gateway.limits.redis_limiter import RedisLimiter, _Settlement
from gateway.redis_place import RedisPlace
from trireme.base.errors import RequestError

if TYPE_CHECKING:
    from redis_here import RedisServer


@pytest.fixture
def key() -> str:
    return secrets.token_hex(6)


@pytest.fixture
def own_redis() -> "Iterator[RedisServer]":
    from redis_here import WHY_NOT, RedisServer, is_redis_here  # as the fixture of all

    if not is_redis_here():
        pytest.skip(WHY_NOT)
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(redis_place.PASSWORD, PASSWORD)


@contextlib.asynccontextmanager
async def limiter_of(
    server: "RedisServer", *, admits_when_away: bool = False, place_s: float = 30.0, silence_s: float = 1.0
) -> AsyncIterator[RedisLimiter]:
    async with (
        redis_place.connected(server.url, silence_s=silence_s) as redis,
        RedisLimiter(redis, admits_when_away=admits_when_away, place_s=place_s) as limiter,
    ):
        yield limiter


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(30):
            await work()

    asyncio.run(bounded())


async def ask(limiter: RedisLimiter, key: str, limits: KeyLimits, *, tokens: int = 1, taken: int = 0) -> dict[str, str]:
    async with limiter.reserved(key, limits, tokens=tokens) as reserved:
        reserved.settle(taken)
        return reserved.headers()


async def refusal(limiter: RedisLimiter, key: str, limits: KeyLimits, *, tokens: int = 1) -> ApiError:
    with pytest.raises(ApiError) as found:
        await ask(limiter, key, limits, tokens=tokens)
    return found.value


def test_several_gateways_let_one_limit_through_together(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(requests_per_minute=60)
        # 64 connections begin at once: on a busy machine that takes longer than a Redis may be silent before a user.
        async with (
            limiter_of(redis_server, silence_s=20.0) as first,
            limiter_of(redis_server, silence_s=20.0) as second,
        ):
            begun_s = time.monotonic()
            results = await asyncio.gather(
                *(ask(each, key, limits) for _ in range(120) for each in (first, second)), return_exceptions=True
            )
            through = [each for each in results if isinstance(each, dict)]
            refused = [each for each in results if isinstance(each, ApiError)]
            assert len(through) + len(refused) == 240
            assert 60 <= len(through) <= 60 + (time.monotonic() - begun_s) + 1  # a request comes back each second
            assert {(each.status, each.code) for each in refused} == {(429, "rate_limit_exceeded")}
            error = await refusal(first, key, limits)
            assert "60 requests a minute" in error.message
            assert error.retry_after_s == pytest.approx(1.0, abs=1.0)
            assert error.headers["x-ratelimit-remaining-requests"] == "0"
            await ask(first, "another" + key, limits)

    run(work)


def test_what_was_taken_is_settled_to_the_token(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(tokens_per_minute=6000)
        redis: Any = Redis.from_url(redis_server.url, password=PASSWORD)  # its types are those of both its clients

        async def bucket() -> tuple[float, float]:
            left, seen_s = await redis.hmget(f"trireme:limits:{{{key}}}", ["tokens", "tokens_seen_s"])
            return float(left), float(seen_s)

        async with limiter_of(redis_server) as first, limiter_of(redis_server) as second:
            await ask(first, key, limits, tokens=3000, taken=3000)  # so that the bucket is not full again meanwhile
            left_before, before_s = await bucket()
            for number, (reserved, taken) in enumerate([(900, 10), (5, 70), (100, 0), (1, 1)]):
                await ask((first, second)[number % 2], key, limits, tokens=reserved, taken=taken)
            left_after, after_s = await bucket()
        await redis.aclose()
        come_back = (after_s - before_s) * 6000 / 60
        assert left_before - left_after + come_back == pytest.approx(10 + 70 + 0 + 1, abs=1e-6)

    run(work)


def test_a_refusal_says_when_the_tokens_are_there(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(tokens_per_minute=60)
        async with limiter_of(redis_server) as limiter:
            headers = await ask(limiter, key, limits, tokens=1, taken=55)
            assert headers["x-ratelimit-remaining-tokens"] == "59"
            error = await refusal(limiter, key, limits, tokens=20)
            assert error.retry_after_s == pytest.approx(15, abs=1.5)
            assert "60 tokens a minute" in error.message
            assert int(error.headers["x-ratelimit-remaining-tokens"]) in (5, 6)

    run(work)


def test_what_goes_beyond_its_estimate_is_paid_back_first(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(tokens_per_minute=60)
        async with limiter_of(redis_server) as limiter:
            await ask(limiter, key, limits, tokens=1, taken=180)
            error = await refusal(limiter, key, limits)
            assert error.retry_after_s == pytest.approx(121, abs=2)

    run(work)


def test_a_request_that_never_fits_goes_when_all_is_there(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(tokens_per_minute=10)
        async with limiter_of(redis_server) as limiter:
            await ask(limiter, key, limits, tokens=500, taken=500)
            assert (await refusal(limiter, key, limits, tokens=500)).status == 429

    run(work)


def test_streams_of_all_gateways_count_and_end_with_their_requests(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(streams=2)
        async with limiter_of(redis_server) as first, limiter_of(redis_server) as second:
            async with first.reserved(key, limits, tokens=1), second.reserved(key, limits, tokens=1):
                error = await refusal(first, key, limits)
                assert "2 requests of this key are running" in error.message
            await ask(first, key, limits)

    run(work)


def test_a_place_is_kept_while_its_request_runs_and_free_when_its_gateway_is_gone(
    redis_server: "RedisServer", key: str
) -> None:
    async def work() -> None:
        limits = KeyLimits(streams=1)
        async with limiter_of(redis_server, place_s=3.0) as living, limiter_of(redis_server, place_s=3.0) as dying:
            async with living.reserved(key, limits, tokens=1):
                await asyncio.sleep(4.5)
                assert (await refusal(dying, key, limits)).status == 429
            async with dying.reserved(key, limits, tokens=1):
                assert dying._mending is not None
                dying._mending.cancel()  # as if its process were gone
                await asyncio.sleep(4.0)
                await ask(living, key, limits)

    run(work)


def test_a_request_is_settled_once_however_often_it_is_told(redis_server: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(tokens_per_minute=6, streams=5)
        async with limiter_of(redis_server) as limiter:
            async with limiter.reserved(key, limits, tokens=2) as reserved:
                reserved.settle(2)
                name = reserved.request_id  # type: ignore[attr-defined]  # Redis' alone
            for _ in range(3):
                await limiter._tell(_Settlement(key, limits, name, requests=-1, tokens=-2))
            assert (await ask(limiter, key, limits, tokens=1))["x-ratelimit-remaining-tokens"] == "3"

    run(work)


def test_a_reservation_whose_answer_never_came_is_taken_back(own_redis: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(requests_per_minute=1, streams=1)
        async with limiter_of(own_redis) as limiter:
            with own_redis.silent():
                assert (await refusal(limiter, key, limits)).status == 503
            deadline_s = asyncio.get_running_loop().time() + 10
            while True:  # Redis has carried it out by now; it is taken back when Redis is asked again
                with contextlib.suppress(ApiError):
                    await ask(limiter, key, limits)
                    break
                assert asyncio.get_running_loop().time() < deadline_s
                await asyncio.sleep(0.1)

    run(work)


def test_a_settlement_that_redis_did_not_hear_is_told_again(own_redis: "RedisServer", key: str) -> None:
    async def work() -> None:
        limits = KeyLimits(tokens_per_minute=600)
        async with limiter_of(own_redis) as limiter:
            async with limiter.reserved(key, limits, tokens=1) as reserved:
                reserved.settle(6000)
                own_redis_is_silent = own_redis.silent()
                own_redis_is_silent.__enter__()
            own_redis_is_silent.__exit__(None, None, None)
            await asyncio.sleep(2.5)
            error = await refusal(limiter, key, limits)
            assert error.retry_after_s == pytest.approx(60 * 5400 / 600, abs=10)

    run(work)


def test_a_key_without_limits_asks_nothing(key: str) -> None:
    async def work() -> None:
        async with (
            redis_place.connected("redis://127.0.0.1:1") as redis,
            RedisLimiter(redis, admits_when_away=False) as limiter,
        ):
            assert await ask(limiter, key, NO_LIMITS) == {}

    run(work)


@pytest.mark.parametrize("how", ["killed", "silent"])
def test_while_redis_is_away_keys_with_limits_are_refused_or_counted_here(
    own_redis: "RedisServer", key: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        limits = KeyLimits(requests_per_minute=3)
        async with limiter_of(own_redis) as closed, limiter_of(own_redis, admits_when_away=True) as opened:
            await ask(closed, key, limits)
            await ask(opened, key, limits)
            with contextlib.ExitStack() as away:
                if how == "killed":
                    own_redis.kill()
                else:
                    away.enter_context(own_redis.silent())
                error = await refusal(closed, key, limits)
                assert (error.status, error.code) == (503, "unavailable")
                assert error.headers == {"x-trireme-not-begun": "true"}
                assert (await refusal(closed, key, limits)).status == 503
                assert len(closed._unsettled) == 1  # of the first, which may have reached Redis, and not of the second
                for _ in range(3):
                    await ask(opened, key, limits)
                assert (await refusal(opened, key, limits)).status == 429
                await ask(closed, key, NO_LIMITS)
            if how == "killed":
                own_redis.start()
            await asyncio.sleep(1.1)
            await ask(closed, "again" + key, limits)

    caplog.set_level(logging.INFO, "trireme.gateway")
    run(work)
    told = [record.message for record in caplog.records if "is away" in record.message]
    assert len(told) == 2  # of each limiter once
    assert "each gateway counts for itself" in told[1] + told[0]
    assert "limits are shared again" in caplog.text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:6379", "--limits must be redis://HOST:PORT/NUMBER"),
        ("http://localhost", "got an address that begins with 'http'"),
        ("redis://", "--limits must be redis://"),
        ("redis://:secret@localhost:6379/0", "--limits must not hold a password"),
    ],
)
def test_a_wrong_address_is_refused_and_a_password_not_shown(url: str, said: str) -> None:
    with pytest.raises(RequestError) as found:
        RedisPlace(url, option="--limits")
    assert said in found.value.message
    assert "secret" not in found.value.message
