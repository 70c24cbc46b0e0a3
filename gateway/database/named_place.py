# SPDX-License-Identifier: Apache-2.0
"""The check of a place that an option names for a gateway's database, before any package of the database is used."""

import logging
from importlib.util import find_spec
from pathlib import Path

from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.store_place import StorePlace, read_place

KEYS_OPTION, LEDGER_OPTION = "--keys", "--ledger"  # that name databases
_PACKAGES = ("sqlalchemy", "alembic")
logging.getLogger("alembic").setLevel(logging.WARNING)  # before it is imported: it tells of its plugins then


def named_place(place: str, *, option: str, new_hint: str | None) -> StorePlace:
    """Return the place of a database that may be opened now.

    Args:
        place: a file, or the URL of a database.
        option: of the command, which names the place.
        new_hint: what makes a file that is not there; None: opening it does.

    Raises:
        RequestError: the place is the URL of something else.
        SpecError: there is no such file, or a package is missing.
    """
    found = read_place(place, option=option)
    field = option.lstrip("-")
    if isinstance(found, Path) and new_hint is not None and not found.exists():
        raise SpecError(f"there is no file {found}; name another one with {option}, or {new_hint}", field=field)
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise SpecError(
                f"{option} needs the Python package {package!r}, which is not installed: {how_to_install('gateway')}",
                field=field,
            )
    return found
