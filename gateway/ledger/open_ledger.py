# SPDX-License-Identifier: Apache-2.0
"""The database of the ledger that `--ledger` names, opened where the packages that it needs are installed."""

from typing import TYPE_CHECKING

from gateway.database.named_place import LEDGER_OPTION, named_place

if TYPE_CHECKING:
    from gateway.ledger.ledger_store import LedgerStore


def open_ledger(place: str, *, may_be_new: bool = True) -> "LedgerStore":
    """Return the ledger at a place, a file or the URL of a database.

    Args:
        may_be_new: whether a file is made that is not there.

    Raises:
        RequestError: the place is the URL of something else.
        SpecError: what is there cannot hold the ledger, or a package is missing.
        Unavailable: the database is away.
    """
    hint = None if may_be_new else f"write one: trireme gateway serve {LEDGER_OPTION} {place}"
    found = named_place(place, option=LEDGER_OPTION, new_hint=hint)
    from gateway.ledger.ledger_store import LedgerStore  # noqa: PLC0415 - needs an extra

    return LedgerStore(found)
