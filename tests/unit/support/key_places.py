# SPDX-License-Identifier: Apache-2.0
"""Places for a store of keys, of each kind and headers of callers."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.access.api_key import ApiKey
from trireme.base.store_place import PostgresPlace, StorePlace

if TYPE_CHECKING:
    from postgres_here import PostgresServer

PLACES = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]


def new_place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    """Return an empty place of the kind that a fixture's parameter names."""
    if request.param == "sqlite":
        return tmp_path / "a" / "keys.sqlite"
    server: PostgresServer = request.getfixturevalue("postgres")
    return PostgresPlace(server.url(server.new_database()), "--keys")


def bearer(key: ApiKey) -> str:
    """Return the header with which a caller brings a key."""
    return f"Bearer {key.text}"
