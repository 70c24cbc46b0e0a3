# SPDX-License-Identifier: Apache-2.0
"""The store of keys that `--keys` names, opened where the packages that it needs are installed."""

from typing import TYPE_CHECKING

from gateway.database.named_place import KEYS_OPTION, named_place

if TYPE_CHECKING:
    from gateway.access.key_store import KeyStore


def open_keys(place: str, *, may_be_new: bool = True) -> "KeyStore":
    """Return the store at a place, a file or the URL of a database.

    Args:
        may_be_new: whether a file is made that is not there.

    Raises:
        RequestError: the place is the URL of something else.
        SpecError: what is there cannot be the store, or a package is missing.
        Unavailable: the database is away.
    """
    hint = None if may_be_new else f"make a key: trireme gateway keys create NAME {KEYS_OPTION} {place}"
    found = named_place(place, option=KEYS_OPTION, new_hint=hint)
    from gateway.access.key_store import KeyStore  # noqa: PLC0415 - needs an extra

    return KeyStore(found)
