# SPDX-License-Identifier: Apache-2.0
"""The limits of keys: what gets through, what is refused and for how long, and what comes back."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from clients.openai_api.api_error import ApiError
from gateway.limits.key_limits import NO_LIMITS, KeyLimits
from gateway.limits.limiter import Limiter
from gateway.limits.token_bucket import TokenBucket


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
def limiter(clock: ManualClock) -> Limiter:
    return Limiter(clock)


def refused(ask: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as found:
        ask()
    assert (found.value.status, found.value.code) == (429, "rate_limit_exceeded")
    return found.value


def test_a_minute_s_worth_gets_through_at_once_and_then_as_much_as_comes_back(
    limiter: Limiter, clock: ManualClock
) -> None:
    limits = KeyLimits(requests_per_minute=60)
    for _ in range(60):
        limiter.reserve("a", limits, tokens=1)
    error = refused(lambda: limiter.reserve("a", limits, tokens=1))
    assert error.retry_after_s == pytest.approx(1.0)
    assert "60 requests a minute" in error.message
    clock.now_s += 0.9
    refused(lambda: limiter.reserve("a", limits, tokens=1))
    clock.now_s += 0.2
    limiter.reserve("a", limits, tokens=1)


def test_keys_do_not_share_their_limits(limiter: Limiter) -> None:
    limits = KeyLimits(requests_per_minute=1)
    limiter.reserve("a", limits, tokens=1)
    limiter.reserve("b", limits, tokens=1)
    refused(lambda: limiter.reserve("a", limits, tokens=1))


def test_four_times_the_limit_lets_the_limit_through_within_one_percent(limiter: Limiter, clock: ManualClock) -> None:
    limits, rng, through, num = KeyLimits(requests_per_minute=600), random.Random(7), 0, 10_000
    begun_s = clock.now_s
    for _ in range(num):
        clock.now_s += rng.expovariate(4 * 600 / 60)
        try:
            limiter.reserve("a", limits, tokens=1)
        except ApiError:
            continue
        through += 1
    allowed = 600 + 600 * (clock.now_s - begun_s) / 60
    assert through == pytest.approx(allowed, rel=0.01)


def test_tokens_that_were_not_taken_come_back_with_the_request_s_end(limiter: Limiter) -> None:
    limits = KeyLimits(tokens_per_minute=1000)
    with limiter.reserve("a", limits, tokens=900) as reservation:
        assert reservation.headers()["x-ratelimit-remaining-tokens"] == "100"
        refused(lambda: limiter.reserve("a", limits, tokens=200))
        reservation.settle(150)
    assert reservation.headers()["x-ratelimit-remaining-tokens"] == "850"
    with limiter.reserve("a", limits, tokens=850):  # it fails, and has taken nothing
        pass
    assert reservation.headers()["x-ratelimit-remaining-tokens"] == "850"


def test_what_a_request_takes_beyond_its_estimate_is_paid_back_first(limiter: Limiter, clock: ManualClock) -> None:
    limits = KeyLimits(tokens_per_minute=600)
    with limiter.reserve("a", limits, tokens=600) as reservation:
        reservation.settle(1200)
    assert refused(lambda: limiter.reserve("a", limits, tokens=10)).retry_after_s == pytest.approx(61.0)
    clock.now_s += 61.0
    limiter.reserve("a", limits, tokens=10)


def test_a_request_that_is_larger_than_a_minute_s_worth_goes_when_all_is_there(
    limiter: Limiter, clock: ManualClock
) -> None:
    limits = KeyLimits(tokens_per_minute=600)
    with limiter.reserve("a", limits, tokens=5000) as reservation:
        reservation.settle(700)
    error = refused(lambda: limiter.reserve("a", limits, tokens=5000))
    assert error.retry_after_s == pytest.approx(70.0)
    clock.now_s += 70.0
    limiter.reserve("a", limits, tokens=5000)


def test_a_refused_request_takes_nothing_of_any_limit(limiter: Limiter) -> None:
    limits = KeyLimits(requests_per_minute=10, tokens_per_minute=100)
    with limiter.reserve("a", limits, tokens=90) as reservation:
        for _ in range(20):
            refused(lambda: limiter.reserve("a", limits, tokens=50))
        assert reservation.headers()["x-ratelimit-remaining-requests"] == "9"


def test_streams_are_counted_while_they_run(limiter: Limiter) -> None:
    limits = KeyLimits(streams=2)
    with limiter.reserve("a", limits, tokens=1), limiter.reserve("a", limits, tokens=1):
        assert "running" in refused(lambda: limiter.reserve("a", limits, tokens=1)).message
    with limiter.reserve("a", limits, tokens=1):
        pass


def test_other_limits_of_a_key_hold_from_the_next_request_on(limiter: Limiter) -> None:
    with limiter.reserve("a", KeyLimits(streams=1), tokens=1):
        refused(lambda: limiter.reserve("a", KeyLimits(streams=1), tokens=1))
        with limiter.reserve("a", KeyLimits(streams=2), tokens=1):
            refused(lambda: limiter.reserve("a", KeyLimits(streams=2), tokens=1))


def test_without_limits_there_are_no_headers_and_no_refusals(limiter: Limiter) -> None:
    for _ in range(1000):
        with limiter.reserve("", NO_LIMITS, tokens=10**9) as reservation:
            assert reservation.headers() == {}


@given(
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1000)), max_size=50),
)
def test_over_any_time_no_more_gets_through_than_the_bucket_and_what_comes_back(
    per_minute: int, steps: list[tuple[float, float]]
) -> None:
    now_s, taken = 0.0, 0.0
    bucket = TokenBucket(per_minute, now_s)
    for later_s, amount in steps:
        now_s += later_s
        if bucket.wait_s(amount, now_s) == 0:
            bucket.take(amount, now_s)
            taken += amount
    assert taken <= per_minute + per_minute * now_s / 60 + 1e-6 * (1 + taken)
