# SPDX-License-Identifier: Apache-2.0
"""The migration of a gateway's tables to this version, when a process opens their database."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from gateway.database.tables import VERSION_TABLE
from trireme.base.errors import SpecError

_MIGRATING = 0x7472696B  # the first half of the key of an advisory lock; any number that nobody else uses


def is_current(connection: Connection, *, option: str) -> bool:
    """Return whether the tables are of this version.

    Args:
        option: of the command, which named the database.

    Raises:
        SpecError: they are of a later one.
    """
    found = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()
    scripts = ScriptDirectory.from_config(_config())
    try:
        scripts.get_revisions(found or ())
    except CommandError as exc:
        raise SpecError(
            f"the tables of the gateway have version {found}, which a later Trireme made; this one knows up to "
            f"{scripts.get_current_head()}: update this one, or name another database with {option}",
            field=option.lstrip("-"),
        ) from exc
    return found == scripts.get_current_head()


def migrate(connection: Connection, *, option: str) -> None:
    """Bring the tables to this version inside the connection's transaction, in one process at a time.

    In SQLite the transaction itself keeps others away: it is one that writes from its beginning.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("select pg_advisory_xact_lock(:key, 0)"), {"key": _MIGRATING})
    if is_current(connection, option=option):  # another process was quicker
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))  # else it would be read as a reference
    return config
