# SPDX-License-Identifier: Apache-2.0
"""The ledger's place and store in each kind of database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from key_places import PLACES, new_place

from gateway.ledger.ledger_store import LedgerStore
from trireme.base.store_place import StorePlace


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StorePlace:
    return new_place(request, tmp_path)


@pytest.fixture
def store(place: StorePlace) -> Iterator[LedgerStore]:
    with LedgerStore(place) as opened:
        yield opened
