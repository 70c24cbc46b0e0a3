# SPDX-License-Identifier: Apache-2.0
"""The check of keys in a gateway process: what each caller is told, what others change, and a database that is away."""

import asyncio
import contextlib
import hmac
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from key_places import PLACES, bearer, new_place
from manual_clock import UNIX_S, ManualClock

from clients.openai_api.api_error import ApiError
from gateway.access.api_key import new_key
from gateway.access.caller import Caller, Role
from gateway.access.key_book import GRACE_S, LEAST_GRACE_S, POLL_S, KeyBook
from gateway.access.key_record import NewKey
from gateway.access.key_store import KeyStore
from trireme.base.errors import Unavailable
from trireme.base.store_place import PostgresPlace, StorePlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer

DAY_S = 86_400
SOON_S = 5.0  # beside other tests a process may wait for its turn


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(UNIX_S)


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    return new_place(request, tmp_path)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator["CountedStore"]:
    with CountedStore(tmp_path / "keys.sqlite", clock) as opened:
        yield opened


class CountedStore(KeyStore):
    """A store that counts questions for single keys, and may be away."""

    is_away = is_broken = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.num_lookups = 0
        self.has_read, self.may_answer = threading.Event(), threading.Event()
        self.has_broken = threading.Event()
        self.may_answer.set()

    def find(self, ids: Any) -> Any:
        self.num_lookups += 1
        self._check()
        found = super().find(ids)
        self.has_read.set()
        assert self.may_answer.wait(10)
        return found

    def changes_since(self, number: int) -> Any:
        self._check()
        if self.is_broken:
            self.has_broken.set()
            raise ZeroDivisionError
        return super().changes_since(number)

    def note_used(self, last_s: Any) -> None:
        self._check()
        super().note_used(last_s)

    def _check(self) -> None:
        if self.is_away:
            raise Unavailable("the database is away", reason="store_away")


def with_book(
    store: KeyStore, work: Callable[[KeyBook], Awaitable[None]], now_s: Callable[[], float] = time.time, **options: Any
) -> None:
    async def run() -> None:
        async with KeyBook(store, now_s=now_s, **options) as book:
            await work(book)

    asyncio.run(run())


async def refusal(book: KeyBook, header: str) -> tuple[int, str]:
    """Return status and code of a refusal, which must not hold the key."""
    with pytest.raises(ApiError) as refused:
        await book.find(header)
    assert len(header) < 40 or header[-20:] not in f"{refused.value.message} {refused.value!r}"
    return refused.value.status, refused.value.code


async def ask_until(book: KeyBook, header: str, end_s: float) -> None:
    while time.monotonic() < end_s:
        await book.find(header)
        await asyncio.sleep(0.01)


def test_a_caller_is_what_the_key_says(store: CountedStore, clock: ManualClock) -> None:
    key = store.create(NewKey("ci", "acme", Role.ADMIN, frozenset({"chat"})))

    async def work(book: KeyBook) -> None:
        caller = await book.find(bearer(key))
        assert caller == Caller(key.id, "acme", Role.ADMIN, frozenset({"chat"}))
        assert (caller.may_use("chat"), caller.may_use("code")) == (True, False)

    with_book(store, work, clock)


def test_no_key_a_wrong_one_and_one_that_is_unknown_are_told_the_same(store: CountedStore, clock: ManualClock) -> None:
    key, unknown = store.create(NewKey("alice")), new_key()

    async def work(book: KeyBook) -> None:
        wrong = key._replace(secret=unknown.secret)
        for header in ("", "Bearer ", key.text, "Basic abc", bearer(wrong), bearer(unknown), f"{bearer(key)}x"):
            assert await refusal(book, header) == (401, "invalid_api_key")

    with_book(store, work, clock)


def test_a_key_expires_at_its_time_and_only_its_holder_is_told(store: CountedStore, clock: ManualClock) -> None:
    key = store.create(NewKey("alice", expires_at_s=int(clock.now_s) + DAY_S))

    async def work(book: KeyBook) -> None:
        clock.now_s += DAY_S - 0.5
        await book.find(bearer(key))
        clock.now_s += 0.5
        assert await refusal(book, bearer(key)) == (401, "key_expired")
        assert await refusal(book, bearer(key._replace(secret=new_key().secret))) == (401, "invalid_api_key")

    with_book(store, work, clock)


def test_a_known_key_asks_the_database_nothing(store: CountedStore, clock: ManualClock) -> None:
    keys = [store.create(NewKey(f"k{n}")) for n in range(5)]

    async def work(book: KeyBook) -> None:
        for key in keys * 20:
            await book.find(bearer(key))
        assert store.num_lookups == 0
        later = store.create(NewKey("later"))
        for _ in range(20):  # a key that is made after the start is known from its first request on
            await book.find(bearer(later))
        assert store.num_lookups == 1

    with_book(store, work, clock)


def test_many_unknown_keys_at_once_are_asked_for_together(store: CountedStore, clock: ManualClock) -> None:
    async def work(book: KeyBook) -> None:
        good = store.create(NewKey("late"))
        headers = [bearer(new_key()) for _ in range(300)] + [bearer(good)]
        found = await asyncio.gather(*map(book.find, headers), return_exceptions=True)
        assert [isinstance(one, ApiError) for one in found] == [True] * 300 + [False]
        assert store.num_lookups <= 2

    with_book(store, work, clock)


def test_no_more_keys_are_known_than_fit_and_all_are_accepted(store: CountedStore, clock: ManualClock) -> None:
    keys = [store.create(NewKey(f"k{n}")) for n in range(6)]
    store.note_used({keys[1].id: 5.0, keys[3].id: 6.0})

    async def work(book: KeyBook) -> None:
        for key in (keys[1], keys[3]):
            await book.find(bearer(key))
        assert store.num_lookups == 0
        for key in (keys[0], keys[3], keys[0], keys[3]):  # keys[1] was used longest ago: it goes
            await book.find(bearer(key))
        assert store.num_lookups == 1
        for key in keys:
            await book.find(bearer(key))

    with_book(store, work, clock, max_known=2)


def test_a_key_that_another_process_revokes_is_refused_within_one_second(place: StorePlace) -> None:
    """Two books of one database: a command revokes, and both refuse."""
    assert POLL_S <= 0.5

    async def run() -> None:
        with KeyStore(place) as first, KeyStore(place) as second, KeyStore(place) as command:
            key, other = command.create(NewKey("alice")), command.create(NewKey("bob"))
            async with KeyBook(first) as one, KeyBook(second) as two:
                books = (one, two)
                for book in books:
                    await book.find(bearer(key))
                await asyncio.to_thread(command.revoke, "alice")
                revoked_s = time.monotonic()
                for book in books:
                    with pytest.raises(ApiError, match="was revoked"):
                        await ask_until(book, bearer(key), revoked_s + SOON_S)
                    await book.find(bearer(other))

    asyncio.run(run())


def test_a_key_that_is_revoked_while_it_is_looked_up_does_not_stay_known(
    store: CountedStore, clock: ManualClock
) -> None:
    """The older row is read first and comes last."""

    async def work(book: KeyBook) -> None:
        key = store.create(NewKey("late"))
        store.may_answer.clear()
        looked_up = asyncio.create_task(book.find(bearer(key)))
        await asyncio.to_thread(store.has_read.wait)
        await asyncio.to_thread(store.revoke, "late")
        refreshed = asyncio.create_task(book.refresh())
        await asyncio.sleep(0.1)
        store.may_answer.set()
        await asyncio.gather(looked_up, refreshed)
        assert await refusal(book, bearer(key)) == (401, "key_revoked")

    with_book(store, work, clock)


def test_known_keys_are_accepted_for_the_grace_while_the_database_is_away(
    store: CountedStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    key, since = store.create(NewKey("alice")), ManualClock(0.0)
    caplog.set_level(logging.INFO, "trireme.gateway")

    async def work(book: KeyBook) -> None:
        store.is_away = True
        unknown = bearer(store.create(NewKey("late")))
        assert await refusal(book, unknown) == (503, "unavailable")
        for now_s in (LEAST_GRACE_S + 1, GRACE_S):
            since.now_s = now_s
            await book.refresh()
            await book.find(bearer(key))
            num_lookups = store.num_lookups
            assert await refusal(book, unknown) == (503, "unavailable")
            assert store.num_lookups == num_lookups  # nobody waits for what is known to be away
        assert await refusal(book, bearer(key._replace(secret=new_key().secret))) == (401, "invalid_api_key")
        since.now_s = GRACE_S + 1
        assert await refusal(book, bearer(key)) == (503, "unavailable")
        store.is_away = False
        await book.refresh()
        await book.find(bearer(key))
        await book.find(unknown)

    with_book(store, work, clock, monotonic_s=since)
    told = [record.getMessage() for record in caplog.records if record.name == "trireme.gateway"]
    assert [text.partition(":")[0] for text in told] == ["the keys cannot be read", "the database of keys is back"]
    assert "accepted for 300 s" in told[0]
    assert not any(key.secret in text for text in told)


def test_an_error_that_nobody_foresaw_ends_no_watch(store: CountedStore, clock: ManualClock) -> None:
    key = store.create(NewKey("alice"))

    async def work(book: KeyBook) -> None:
        store.is_broken = True
        await asyncio.to_thread(store.has_broken.wait)
        store.is_broken = False
        store.revoke("alice")
        with pytest.raises(ApiError, match="was revoked"):
            await ask_until(book, bearer(key), time.monotonic() + SOON_S)

    with_book(store, work, clock)


def test_a_backup_in_the_place_of_the_database_counts_from_then_on(store: CountedStore, clock: ManualClock) -> None:
    key = store.create(NewKey("alice"))

    async def work(book: KeyBook) -> None:
        with store._database.changing() as connection:
            connection.exec_driver_sql("delete from gateway_keys")
            connection.exec_driver_sql("update gateway_key_changes set number = 0")
        await book.refresh()
        assert await refusal(book, bearer(key)) == (401, "invalid_api_key")

    with_book(store, work, clock)


def test_when_a_key_was_used_is_written_later_and_at_the_end(store: CountedStore, clock: ManualClock) -> None:
    key, other = store.create(NewKey("alice")), store.create(NewKey("bob"))

    def last_used() -> list[int | None]:
        return [record.last_used_at_s for record in store.records()]

    async def work(book: KeyBook) -> None:
        first_s = int(clock.now_s)
        await book.find(bearer(key))
        assert last_used() == [None, None]
        store.is_away = True
        with pytest.raises(Unavailable):
            await book.note_used()
        store.is_away = False
        await book.note_used()
        assert last_used() == [first_s, None]
        clock.now_s += 100
        await book.find(bearer(other))

    with_book(store, work, clock)
    assert last_used() == [int(clock.now_s) - 100, int(clock.now_s)]


def test_a_wrong_key_is_not_used(store: CountedStore, clock: ManualClock) -> None:
    key = store.create(NewKey("alice"))

    async def work(book: KeyBook) -> None:
        await refusal(book, bearer(key._replace(secret=new_key().secret)))

    with_book(store, work, clock)
    assert store.records()[0].last_used_at_s is None


def test_an_unknown_key_is_compared_as_a_known_one_is(
    store: CountedStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared, compare = [], hmac.compare_digest

    def noting(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    key = store.create(NewKey("alice"))

    async def work(book: KeyBook) -> None:
        for each in (new_key(), key._replace(secret=new_key().secret)):
            await refusal(book, bearer(each))

    with_book(store, work, clock)
    assert compared == [(32, 32), (32, 32)]


def test_no_line_of_any_log_holds_a_secret(
    store: CountedStore, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with caplog.at_level(logging.DEBUG, "sqlalchemy"):
        key, unknown = store.create(NewKey("alice")), new_key()

        async def work(book: KeyBook) -> None:
            await book.find(bearer(key))
            await refusal(book, bearer(unknown))
            store.revoke("alice")
            store.is_away = True
            await book.refresh()

        with_book(store, work, clock)
    assert caplog.records
    assert not any(secret in caplog.text for secret in (key.secret, unknown.secret))


@pytest.mark.slow
def test_a_server_that_goes_and_comes_back_is_asked_again(postgres: "PostgresServer") -> None:
    place = PostgresPlace(postgres.url(postgres.new_database()), "--keys")
    with KeyStore(place) as store:
        key = store.create(NewKey("alice"))
        late = store.create(NewKey("late"))
        store.revoke("late")

        async def work(book: KeyBook) -> None:
            await asyncio.to_thread(postgres.stop)
            try:
                await book.find(bearer(key))
                assert await refusal(book, bearer(late)) == (503, "unavailable")
            finally:
                await asyncio.to_thread(postgres.start)
            with contextlib.suppress(ApiError):
                await book.find(bearer(late))
            await book.refresh()
            assert await refusal(book, bearer(late)) == (401, "key_revoked")
            await asyncio.to_thread(store.revoke, "alice")
            await book.refresh()
            assert await refusal(book, bearer(key)) == (401, "key_revoked")

        with_book(store, work)
