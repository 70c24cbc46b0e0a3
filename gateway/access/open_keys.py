# SPDX-License-Identifier: Apache-2.0
"""The store of keys that `--keys` names, opened where the packages that it needs are installed."""

from pathlib import Path
from typing import TYPE_CHECKING

from trireme.base.errors import SpecError
from trireme.base.extras import how_to_install
from trireme.base.store_place import read_place

if TYPE_CHECKING:
    from gateway.access.key_store import KeyStore

OPTION = "--keys"


def open_keys(place: str, *, may_be_new: bool = True) -> "KeyStore":
    """Return the store at a place, a file or the URL of a database.

    Args:
        may_be_new: whether a file is made that is not there.

    Raises:
        RequestError: the place is the URL of something else.
        SpecError: what is there cannot be the store, or a package is missing.
        Unavailable: the database is away.
    """
    found = read_place(place, option=OPTION)
    if isinstance(found, Path) and not may_be_new and not found.exists():
        raise SpecError(
            f"there is no file of keys {found}; name another one with --keys, or make a key: trireme gateway keys "
            f"create NAME --keys {found}",
            field="keys",
        )
    try:
        from gateway.access.key_store import KeyStore  # noqa: PLC0415 - needs an extra
    except ModuleNotFoundError as exc:
        raise SpecError(
            f"--keys needs the Python package {exc.name!r}, which is not installed: {how_to_install('gateway')}",
            field="keys",
        ) from exc
    return KeyStore(found)
