# SPDX-License-Identifier: Apache-2.0
"""The budgets of keys: what each has spent by the ledger, and what this process knows before the ledger does.

A request reserves what it may cost. Gateways know of each other's requests when these are in the ledger, which takes
some two seconds: together they may go beyond a budget by what the others have spent in that time.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple, Self

from clients.openai_api.api_error import NOT_BEGUN, ApiError
from gateway.ledger.ledger_row import SECONDS_A_DAY
from gateway.limits.key_limits import KeyLimits
from gateway.limits.refusals import holder_of
from trireme.base.errors import ServingError

if TYPE_CHECKING:
    from gateway.ledger.ledger_store import LedgerStore  # needs an extra

_READ_S, _ANSWER_S = 1.0, 5.0
_FORGET_S = 600.0  # a key that nobody uses is not asked about
_NANO = 10**9
_log = logging.getLogger("trireme.gateway")


class Charge(NamedTuple):
    """The cost of a request that the ledger does not have yet.

    Attributes:
        is_over: whether the cost is that of a request that has ended, and not an estimate.
    """

    day: int
    nano_usd: int
    is_over: bool = False


class _Spending:
    """The spending of one key."""

    def __init__(self) -> None:
        self.in_ledger: dict[int, int] | None = None  # by day; None: not read yet
        self.charges: dict[str, Charge] = {}  # by request
        self.used_s = 0.0

    def since(self, day: int) -> int:
        """Return what was spent and is reserved from a day on."""
        ledger = sum(cost for at, cost in (self.in_ledger or {}).items() if at >= day)
        return ledger + sum(charge.nano_usd for charge in self.charges.values() if charge.day >= day)


class Budgets:
    """The spending of keys that have a budget, inside an `async with`.

    Args:
        store: of the ledger; whoever opened it closes it.
        now_s: seconds since 1970.
    """

    def __init__(self, store: "LedgerStore", *, now_s: Callable[[], float] = time.time) -> None:
        self._store, self._now_s = store, now_s
        self._keys: dict[str, _Spending] = {}
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="budgets")
        self._reading: asyncio.Task[None] | None = None
        self._is_away = False
        self._away_until_s = 0.0

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read_always())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def reserve(self, request_id: str, key_id: str, limits: KeyLimits, *, nano_usd: int) -> None:
        """Reserve what a request may cost, until `settle` says what it did.

        Raises:
            ApiError: 429: it may go beyond the budget; 503: the ledger is away, and this process never read the key's
                spending.
        """
        spending = self._keys.setdefault(key_id, _Spending())
        spending.used_s = self._now_s()
        if spending.in_ledger is None:
            await self._look_up(spending)
        now = datetime.fromtimestamp(self._now_s(), UTC)
        today, month = _day_of(now), _day_of(now.replace(day=1))
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        next_month = (midnight.replace(day=1) + timedelta(days=32)).replace(day=1)
        for most, since, word, ends in (
            (limits.nano_usd_per_day, today, "day", midnight + timedelta(days=1)),
            (limits.nano_usd_per_month, month, "month", next_month),
        ):
            if most is not None and (spent := spending.since(since)) + nano_usd > most:
                raise _used_up(key_id, most, spent, nano_usd, word, ends, now)
        spending.charges[request_id] = Charge(today, nano_usd)

    def settle(self, request_id: str, key_id: str, *, nano_usd: int) -> None:
        """Put the cost of a request that has ended in the place of what was reserved."""
        charges = self._keys[key_id].charges
        if (
            not nano_usd
        ):  # it adds nothing; one that another limit refused comes into no ledger, and would stay for ever
            del charges[request_id]
            return
        charges[request_id] = Charge(charges[request_id].day, nano_usd, is_over=True)

    async def refresh(self) -> None:
        """Read what the ledger has of the keys that are used."""
        async with self._turn:
            await self._read()

    async def _look_up(self, spending: _Spending) -> None:
        if time.monotonic() < self._away_until_s:
            raise _nobody_knows()
        try:
            async with asyncio.timeout(_ANSWER_S), self._turn:
                if spending.in_ledger is None:
                    await self._read()
        except (ServingError, TimeoutError) as exc:
            self._tell_away(exc)
            raise _nobody_knows() from exc

    async def _read(self) -> None:
        now_s = self._now_s()
        if not self._keys:
            return
        keys = dict(self._keys)
        over = [name for one in keys.values() for name, charge in one.charges.items() if charge.is_over]
        first = _day_of(datetime.fromtimestamp(now_s, UTC).replace(day=1))
        loop = asyncio.get_running_loop()
        known, spent = await loop.run_in_executor(
            self._thread, lambda: self._store.spending(list(keys), since_day=first, request_ids=over)
        )
        for key_id, spending in keys.items():
            spending.in_ledger = spent.get(key_id, {})
            for name in known & spending.charges.keys():
                del spending.charges[name]
            if not spending.charges and now_s - spending.used_s > _FORGET_S:
                del self._keys[key_id]
        if self._is_away:
            self._is_away = False
            _log.info("budgets are read again")

    async def _read_always(self) -> None:
        while True:
            await asyncio.sleep(_READ_S)
            try:
                await self.refresh()
            except Exception as exc:  # whatever it is, the next time may be better
                self._tell_away(exc)

    def _tell_away(self, exc: Exception) -> None:
        self._away_until_s = time.monotonic() + _READ_S
        if not self._is_away:
            self._is_away = True
            said = exc.message if isinstance(exc, ServingError) else repr(exc)
            _log.error("the ledger, by which budgets are kept, cannot be read: %s", said)


def _nobody_knows() -> ApiError:
    return ApiError(
        "the spending of this key cannot be read now, for the ledger is away; try again",
        code="unavailable",
        status=503,
        retry_after_s=1,
        headers={NOT_BEGUN: "true"},
    )


def _day_of(moment: datetime) -> int:
    return int(moment.timestamp()) // SECONDS_A_DAY


def _used_up(account: str, most: int, spent: int, wanted: int, word: str, ends: datetime, now: datetime) -> ApiError:
    return ApiError(
        f"{holder_of(account)} may spend ${most / _NANO:.2f} a {word}; ${spent / _NANO:.6f} are spent or reserved, and "
        f"this request may take ${wanted / _NANO:.6f}; ask for fewer tokens, or go on from {ends:%Y-%m-%dT%H:%M:%SZ}",
        code="insufficient_quota",
        status=429,
        retry_after_s=(ends - now).total_seconds(),
    )
