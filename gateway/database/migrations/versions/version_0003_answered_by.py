# SPDX-License-Identifier: Apache-2.0
"""Version 0003 of the tables: what answered in place of a model, the tier that was asked for, and what was saved."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the columns; the requests that are there were answered by the model that they named."""
    for column in (
        sa.Column("answered_by", sa.Text, nullable=False, server_default=""),
        sa.Column("tier", sa.Text, nullable=False, server_default=""),
        sa.Column("saved_nano_usd", sa.BigInteger, nullable=False, server_default="0"),
    ):
        op.add_column("gateway_requests", column)
