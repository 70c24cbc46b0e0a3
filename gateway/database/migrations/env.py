# SPDX-License-Identifier: Apache-2.0
"""The program that Alembic runs for a migration, on the connection that `gateway.database.migrate` hands it."""

from alembic import context

from gateway.database.tables import VERSION_TABLE

context.configure(connection=context.config.attributes["connection"], version_table=VERSION_TABLE)
with context.begin_transaction():
    context.run_migrations()
