# SPDX-License-Identifier: Apache-2.0
"""The check of keys in one gateway process: known keys from memory, and the changes of the store as they happen.

A request with a known key costs no question to the database. The book asks twice a second what has changed, so that a
key that is revoked anywhere is refused here within one second. While the database is away, known keys are accepted for
`grace_s`: a key that is revoked meanwhile by a process that does reach the database is accepted for so long at most.
"""

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, ParamSpec, Self, TypeVar

from clients.openai_api.api_error import NOT_BEGUN, ApiError
from gateway.access.api_key import NO_HASH, bearer_key
from gateway.access.caller import Caller, not_accepted
from gateway.access.key_lookups import KeyLookups
from gateway.access.key_record import KeyRecord
from trireme.base.errors import ServingError

if TYPE_CHECKING:
    from gateway.access.key_store import KeyStore  # needs an extra

P = ParamSpec("P")
T = TypeVar("T")

GRACE_S = 300.0
LEAST_GRACE_S = 5.0  # a question may take so long before the database counts as away
POLL_S = 0.5  # a revocation is promised within one second
_NOTE_USED_S = 60.0
_LAST_NOTE_S = 2.0  # at the end of the process
_MAX_KNOWN = 10_000
_THREADS = 2  # for what changed and for when keys were used: a writer waits, a reader never

_log = logging.getLogger("trireme.gateway")


class KeyBook:
    """The keys that one process knows, inside an `async with`.

    Args:
        store: of the keys; whoever opened it closes it.
        grace_s: how long known keys are accepted while the database is away, from LEAST_GRACE_S on.
        max_known: how many keys are known; of more, those that were used last.
        now_s: seconds since 1970.
        monotonic_s: seconds that no change of the clock moves.
    """

    def __init__(
        self,
        store: "KeyStore",
        *,
        grace_s: float = GRACE_S,
        max_known: int = _MAX_KNOWN,
        now_s: Callable[[], float] = time.time,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._grace_s, self._max_known = store, max(grace_s, LEAST_GRACE_S), max_known
        self._now_s, self._monotonic_s = now_s, monotonic_s
        self._known: OrderedDict[str, KeyRecord] = OrderedDict()
        self._number: int | None = None  # of the last change that is known; None: nothing was read yet
        self._heard_s = 0.0  # when the last question was sent that was answered
        self._is_away = False
        self._used_s: dict[str, float] = {}
        self._turn = asyncio.Lock()  # what is read is taken in before the next is read: an older row never wins
        self._lookups = KeyLookups(self._ask, self._turn)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="keys")
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self._read()
        self._tasks = [asyncio.create_task(self._follow()), asyncio.create_task(self._note_used_always())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(ServingError, TimeoutError):
            async with asyncio.timeout(_LAST_NOTE_S):
                await self.note_used()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def find(self, authorization: str) -> Caller:
        """Return the caller of a request by its header `Authorization`.

        Raises:
            ApiError: 401 for no key, a wrong one, and one that is revoked or has expired, which only its holder is
                told; 503: the database is away. Neither holds the key.
        """
        key = bearer_key(authorization)
        if key is None:
            raise not_accepted()
        record = self._known.get(key.id) or await self._looked_up(key.id)
        # A key that is not there takes the same comparison: the time tells no id.
        is_right = key.is_of(NO_HASH if record is None else record.secret_sha256)
        if record is None or not is_right:
            raise not_accepted()
        now_s = self._now_s()
        if record.revoked_at_s is not None:
            raise ApiError("this key was revoked; ask for another one", code="key_revoked", status=401)
        if record.has_expired(now_s):
            raise ApiError("this key has expired; ask for another one", code="key_expired", status=401)
        if self._silent_s() > self._grace_s:
            raise _nobody_knows()
        if record.id in self._known:
            self._known.move_to_end(record.id)
        self._used_s[record.id] = now_s
        return record.caller

    async def note_used(self) -> None:
        """Write down which keys were used since the last time.

        Raises:
            Unavailable: the database is away; they are written the next time.
        """
        used_s, self._used_s = self._used_s, {}
        if not used_s:
            return
        try:
            await self._in_thread(self._store.note_used, used_s)
        except Exception:
            self._used_s = {**used_s, **self._used_s}
            raise

    async def refresh(self) -> None:
        """Take in what has changed since the last time; a database that is away is told to the log, once."""
        try:
            await self._read()
        except Exception as exc:  # whatever it is, the next time may be better, and known keys have their grace
            self._tell_away(exc)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self.refresh()

    async def _note_used_always(self) -> None:
        is_told = False
        while True:
            await asyncio.sleep(_NOTE_USED_S)
            try:
                await self.note_used()
                is_told = False
            except Exception as exc:  # the next time may be better
                if not is_told and not self._is_away:
                    _log.warning("when keys were last used is not written: %s", _said(exc))
                is_told = True

    async def _looked_up(self, key_id: str) -> KeyRecord | None:
        if self._silent_s() > LEAST_GRACE_S:
            raise _nobody_knows()
        try:
            async with asyncio.timeout(LEAST_GRACE_S):
                return await self._lookups.find(key_id)
        except (ServingError, TimeoutError) as exc:
            raise _nobody_knows() from exc

    async def _ask(self, ids: Collection[str]) -> Mapping[str, KeyRecord]:
        """Read keys and remember them; the caller has the turn."""
        records = await self._in_thread(self._store.find, ids)
        for record in records:
            self._remember(record)
        return {record.id: record for record in records}

    async def _read(self) -> None:
        """Ask for what has changed, and take in the answer."""
        async with self._turn:
            asked_s, number = self._monotonic_s(), self._number
            changes = None if number is None else await self._in_thread(self._store.changes_since, number)
            if number is None or changes is None or changes.number < number:
                # Nothing is known yet, or a backup was put in the place of what was.
                changes = await self._in_thread(self._store.latest, self._max_known)
                self._known.clear()
                for record in reversed(changes.records):
                    self._remember(record)
            else:
                self._known.update((record.id, record) for record in changes.records if record.id in self._known)
            self._number, self._heard_s = changes.number, asked_s
        if self._is_away:
            self._is_away = False
            _log.info("the database of keys is back")

    def _remember(self, record: KeyRecord) -> None:
        self._known[record.id] = record
        self._known.move_to_end(record.id)
        while len(self._known) > self._max_known:
            self._known.popitem(last=False)

    def _silent_s(self) -> float:
        return self._monotonic_s() - self._heard_s

    def _tell_away(self, exc: Exception) -> None:
        if self._is_away:
            return
        self._is_away = True
        _log.warning(
            "the keys cannot be read: %s; those that are known are accepted for %g s, others are not",
            _said(exc),
            self._grace_s,
        )

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))


def _said(exc: Exception) -> str:
    return exc.message if isinstance(exc, ServingError) else repr(exc)


def _nobody_knows() -> ApiError:
    return ApiError(
        "keys cannot be checked now, for their database is away; try again",
        code="unavailable",
        status=503,
        retry_after_s=1,
        headers={NOT_BEGUN: "true"},
    )
