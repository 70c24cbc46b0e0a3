# SPDX-License-Identifier: Apache-2.0
"""The versions of the tables in a gateway's database, for Alembic; `gateway.database.migrate` runs them."""
