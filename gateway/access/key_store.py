# SPDX-License-Identifier: Apache-2.0
"""The keys of a gateway in its database: made, listed, revoked, and the changes that other processes follow."""

import time
from collections.abc import Callable, Collection, Mapping
from typing import Self

from sqlalchemy import ColumnElement, Connection, Select, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from gateway.access.api_key import ApiKey, new_key
from gateway.access.caller import Role
from gateway.access.key_record import KeyChanges, KeyRecord, NewKey
from gateway.database.database import GatewayDatabase
from gateway.database.named_place import KEYS_OPTION
from gateway.database.tables import CHANGES, KEYS
from gateway.limits.key_limits import KeyLimits
from trireme.base.errors import RequestError
from trireme.base.store_place import StorePlace

_COLUMNS = [KEYS.c[name] for name in KeyRecord._fields]


class KeyStore:
    """The keys at one place; threads may use it side by side.

    Args:
        place: the file, or the database; its tables are made if they are not there, a file and its folder too.
        now_s: seconds since 1970.

    Attributes:
        place: shown without its password.

    Raises:
        SpecError: what is there cannot be the store.
        Unavailable: the database is away; every method raises it too.
    """

    def __init__(self, place: StorePlace, now_s: Callable[[], float] = time.time) -> None:
        self.place, self._now_s = place, now_s
        self._database = GatewayDatabase(place, option=KEYS_OPTION)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def create(self, wish: NewKey) -> ApiKey:
        """Make a key, and return the whole of it, which nothing can do again.

        Raises:
            RequestError: another key has the name.
        """
        key = new_key()
        with self._database.changing() as connection:
            row = {
                **wish._asdict(),
                "id": key.id,
                "secret_sha256": key.secret_sha256,
                "models": None if wish.models is None else sorted(wish.models),
                "limits": {name: most for name, most in wish.limits._asdict().items() if most is not None},
                "created_at_s": int(self._now_s()),
                "change_number": _count_up(connection),
            }
            try:
                connection.execute(insert(KEYS).values(row))
            except IntegrityError:
                raise RequestError(
                    f"there is a key {wish.name!r} in {self.place} already; give another name, or revoke that one "
                    f"first: trireme gateway keys revoke {wish.name} --keys {self.place}",
                    field="name",
                    value=wish.name,
                ) from None  # it may quote values
        return key

    def revoke(self, id_or_name: str) -> KeyRecord:
        """Revoke a key, and return what it is then; one that is revoked already stays so since then.

        Raises:
            RequestError: there is no key with this id, and none with this name that is not revoked.
        """
        with self._database.changing() as connection:
            number = _count_up(connection)
            is_meant = or_(KEYS.c.id == id_or_name, (KEYS.c.name == id_or_name) & KEYS.c.revoked_at_s.is_(None))
            connection.execute(
                update(KEYS)
                .where(is_meant, KEYS.c.revoked_at_s.is_(None))
                .values(revoked_at_s=int(self._now_s()), change_number=number)
            )
            found = _records(connection, _query().where(or_(KEYS.c.id == id_or_name, KEYS.c.change_number == number)))
            if not found:
                raise RequestError(
                    f"there is no key {id_or_name!r} in {self.place} that could be revoked; ids and names are in "
                    f"trireme gateway keys list --keys {self.place}",
                    field="key",
                    value=id_or_name,
                )
        return found[0]

    def records(self) -> list[KeyRecord]:
        """Return every key, the oldest first."""
        with self._database.reading() as connection:
            return _records(connection, _query().order_by(KEYS.c.created_at_s, KEYS.c.change_number))

    def find(self, ids: Collection[str]) -> list[KeyRecord]:
        """Return the keys with these ids; what is no id of a key is left out."""
        with self._database.reading() as connection:
            return _records(connection, _query().where(KEYS.c.id.in_(ids)))

    def latest(self, limit: int) -> KeyChanges:
        """Return the keys that are not revoked, at most `limit` of them, those that were used last."""
        used = _query().where(KEYS.c.revoked_at_s.is_(None)).order_by(KEYS.c.last_used_at_s.desc().nulls_last())
        return self._changes(used.limit(limit))

    def changes_since(self, number: int) -> KeyChanges:
        """Return the keys that were made or revoked after a change."""
        return self._changes(_query().where(KEYS.c.change_number > number))

    def _changes(self, query: Select[tuple[object, ...]]) -> KeyChanges:
        with self._database.reading() as connection:
            number = connection.execute(select(CHANGES.c.number)).scalar_one()  # first: a later change is told again
            return KeyChanges(number, _records(connection, query))

    def note_used(self, last_s: Mapping[str, float]) -> None:
        """Write down when keys were last used, by their ids, in seconds since 1970; a later time stays."""
        with self._database.changing() as connection:
            for key_id, at_s in sorted(last_s.items()):  # in one order: else two processes could wait for each other
                connection.execute(
                    update(KEYS)
                    .where(KEYS.c.id == key_id, _is_before(KEYS.c.last_used_at_s, int(at_s)))
                    .values(last_used_at_s=int(at_s))
                )


def _count_up(connection: Connection) -> int:
    """Return the number of a change, which no other process has until this transaction has ended."""
    counted = update(CHANGES).values(number=CHANGES.c.number + 1).returning(CHANGES.c.number)
    return int(connection.execute(counted).scalar_one())


def _is_before(column: ColumnElement[int], at_s: int) -> ColumnElement[bool]:
    return or_(column.is_(None), column < at_s)


def _query() -> Select[tuple[object, ...]]:
    return select(*_COLUMNS)


def _records(connection: Connection, query: Select[tuple[object, ...]]) -> list[KeyRecord]:
    return [_record(KeyRecord._make(row)) for row in connection.execute(query)]


def _record(row: KeyRecord) -> KeyRecord:
    """Return a row with the types of a record."""
    models = None if row.models is None else frozenset(row.models)
    limits = KeyLimits(**row.limits)  # type: ignore[arg-type]  # a row has an object there
    return row._replace(secret_sha256=bytes(row.secret_sha256), role=Role(row.role), models=models, limits=limits)
