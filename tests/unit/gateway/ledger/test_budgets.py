# SPDX-License-Identifier: Apache-2.0
"""Budgets of keys: what is spent and reserved, in one process and in several, at midnight and with the ledger away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from manual_clock import ManualClock

from clients.openai_api.api_error import ApiError
from gateway.ledger.budgets import Budgets
from gateway.ledger.ledger_row import LedgerRow
from gateway.ledger.ledger_store import LedgerStore
from gateway.limits.key_limits import KeyLimits
from trireme.base.errors import Unavailable

DOLLAR = 10**9
NOON_S = 1_700_049_600.0  # 2023-11-15, a Wednesday
DAY_S = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOON_S)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[LedgerStore]:
    with LedgerStore(tmp_path / "ledger.sqlite") as opened:
        yield opened


def row(name: str, nano_usd: int, at_s: float = NOON_S, key: str = "k") -> LedgerRow:
    return LedgerRow(
        id=name, begun_at_s=at_s, key_id=key, tenant="", endpoint="e", model="m", cost_nano_usd=nano_usd, finish="stop"
    )


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(work())  # type: ignore[arg-type]


async def refusal(budgets: Budgets, limits: KeyLimits, nano_usd: int, key: str = "k") -> ApiError:
    with pytest.raises(ApiError) as found:
        await budgets.reserve("refused", key, limits, nano_usd=nano_usd)
    return found.value


def test_what_is_reserved_and_spent_counts(store: LedgerStore, clock: ManualClock) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR)
        store.add([row("old", 4 * DOLLAR), row("of another", 9 * DOLLAR, key="other")])
        async with Budgets(store, now_s=clock) as budgets:
            await budgets.reserve("a", "k", limits, nano_usd=5 * DOLLAR)
            error = await refusal(budgets, limits, 2 * DOLLAR)
            assert (error.status, error.code) == (429, "insufficient_quota")
            assert "$10.00 a day; $9.000000 are spent or reserved" in error.message
            assert "go on from 2023-11-16T00:00:00Z" in error.message
            assert error.retry_after_s == DAY_S / 2
            budgets.settle("a", "k", nano_usd=1 * DOLLAR)
            await budgets.reserve("b", "k", limits, nano_usd=5 * DOLLAR)

    run(work)


def test_a_request_counts_once_when_the_ledger_has_it(store: LedgerStore, clock: ManualClock) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR)
        async with Budgets(store, now_s=clock) as budgets:
            await budgets.reserve("a", "k", limits, nano_usd=6 * DOLLAR)
            store.add([row("a", 6 * DOLLAR)])
            await budgets.refresh()  # it runs, for all that is known here: it counts twice rather than not at all
            budgets.settle("a", "k", nano_usd=6 * DOLLAR)
            await budgets.refresh()
            await budgets.reserve("b", "k", limits, nano_usd=4 * DOLLAR)
            assert (await refusal(budgets, limits, 1)).status == 429

    run(work)


def test_what_another_gateway_spent_counts_once_the_ledger_has_it(store: LedgerStore, clock: ManualClock) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR)
        async with Budgets(store, now_s=clock) as budgets:
            await budgets.reserve("a", "k", limits, nano_usd=1)
            store.add([row("elsewhere", 10 * DOLLAR)])
            await budgets.refresh()
            assert (await refusal(budgets, limits, 1)).status == 429

    run(work)


def test_a_day_ends_at_midnight_and_the_month_goes_on(store: LedgerStore, clock: ManualClock) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR, nano_usd_per_month=15 * DOLLAR)
        store.add([row("last month", 100 * DOLLAR, at_s=NOON_S - 20 * DAY_S)])
        async with Budgets(store, now_s=clock) as budgets:
            await budgets.reserve("a", "k", limits, nano_usd=10 * DOLLAR)
            clock.now_s += DAY_S
            await budgets.reserve("b", "k", limits, nano_usd=5 * DOLLAR)
            error = await refusal(budgets, limits, 1)
            assert "$15.00 a month" in error.message
            assert "2023-12-01T00:00:00Z" in error.message
            clock.now_s += 15 * DAY_S  # the 1st of December
            await budgets.reserve("c", "k", limits, nano_usd=10 * DOLLAR)

    run(work)


def test_without_the_ledger_a_known_key_goes_on_and_an_unknown_one_waits(
    store: LedgerStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR)
        async with Budgets(store, now_s=clock) as budgets:
            await budgets.reserve("a", "k", limits, nano_usd=6 * DOLLAR)

            def away(*_: object, **__: object) -> None:
                raise Unavailable("the database is away", reason="store_away")

            with monkeypatch.context() as broken:
                broken.setattr(store, "spending", away)
                with pytest.raises(Unavailable):
                    await budgets.refresh()
                await budgets.reserve("b", "k", limits, nano_usd=3 * DOLLAR)
                assert (await refusal(budgets, limits, 2 * DOLLAR)).status == 429
                error = await refusal(budgets, limits, 1, key="unknown")
                assert (error.status, error.code) == (503, "unavailable")
                assert error.headers == {"x-trireme-not-begun": "true"}
            await asyncio.sleep(1.1)  # so long it is not asked again
            await budgets.reserve("c", "unknown", limits, nano_usd=1)

    run(work)
    assert "by which budgets are kept, cannot be read" in caplog.text


def test_a_request_that_another_limit_refused_leaves_nothing_behind(store: LedgerStore, clock: ManualClock) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR)
        async with Budgets(store, now_s=clock) as budgets:
            for number in range(3):
                await budgets.reserve(f"{number}", "k", limits, nano_usd=9 * DOLLAR)
                budgets.settle(f"{number}", "k", nano_usd=0)
            assert budgets._keys["k"].charges == {}

    run(work)


def test_a_key_that_nobody_uses_is_forgotten(store: LedgerStore, clock: ManualClock) -> None:
    async def work() -> None:
        limits = KeyLimits(nano_usd_per_day=10 * DOLLAR)
        async with Budgets(store, now_s=clock) as budgets:
            await budgets.reserve("a", "k", limits, nano_usd=1)
            budgets.settle("a", "k", nano_usd=1)
            store.add([row("a", 1)])
            await budgets.refresh()
            clock.now_s += 3600
            await budgets.refresh()
            assert not budgets._keys

    run(work)
