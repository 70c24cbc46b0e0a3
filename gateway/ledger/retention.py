# SPDX-License-Identifier: Apache-2.0
"""The retention of the ledger: a gateway deletes requests that are older than the deployment keeps them.

Some rows at a time, each time in a transaction of its own with the sums of their days, and with a pause between: others
write meanwhile. A gateway that is killed has deleted and summed up a row, or has not touched it.
"""

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from ensemble_configs.spec.gateway_spec import LedgerRetentionSpec
from gateway.ledger.ledger_row import SECONDS_A_DAY
from trireme.base.errors import ServingError

if TYPE_CHECKING:
    from gateway.ledger.ledger_store import LedgerStore  # needs an extra

_FIRST_S, _EVERY_S = 10.0, 3600.0
_PAUSE_S = 0.2  # longer than a process waits between two looks at SQLite's lock
_MAX_ROWS = 500
_END_S = 5.0
_log = logging.getLogger("trireme.gateway")


class Retention:
    """The retention of one ledger, inside a `with`; of several gateways one deletes at a time.

    Args:
        store: of the rows; whoever opened it closes it.
        now_s: seconds since 1970.
        first_s: seconds to the first look for old requests.
        max_rows: that go in one transaction.
    """

    def __init__(
        self,
        store: "LedgerStore",
        rules: LedgerRetentionSpec,
        *,
        now_s: Callable[[], float] = time.time,
        first_s: float = _FIRST_S,
        pause_s: float = _PAUSE_S,
        max_rows: int = _MAX_ROWS,
    ) -> None:
        self._store, self._rules, self._now_s = store, rules, now_s
        self._first_s, self._pause_s, self._max_rows = first_s, pause_s, max_rows
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._delete_always, name="ledger retention", daemon=True)
        self._is_failing = False

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(_END_S)

    def delete_old(self) -> int:
        """Delete what is too old, to its end or that of the process, and return how many requests that were.

        Raises:
            Unavailable: the database is away; what was deleted until then is.
        """
        first_day = int(self._now_s()) // SECONDS_A_DAY - self._rules.keep_days
        num_deleted = 0
        while num_now := self._store.delete_before(first_day, keeps_sums=self._rules.day_sums, max_rows=self._max_rows):
            num_deleted += num_now
            if self._is_over.wait(self._pause_s):
                break
        if num_deleted:
            date = datetime.fromtimestamp(first_day * SECONDS_A_DAY, UTC).date()
            stay = "the sums of their days stay" if self._rules.day_sums else "nothing of them stays"
            _log.info("%d requests of before %s left the ledger; %s", num_deleted, date, stay)
        return num_deleted

    def _delete_always(self) -> None:
        wait_s = self._first_s
        while not self._is_over.wait(wait_s):
            wait_s = _EVERY_S
            try:
                self.delete_old()
            except Exception as exc:  # whatever it is, the next time may be better
                if not self._is_failing:
                    said = exc.message if isinstance(exc, ServingError) else repr(exc)
                    _log.error("old requests of the ledger cannot be deleted: %s", said)
                self._is_failing = True
            else:
                self._is_failing = False
