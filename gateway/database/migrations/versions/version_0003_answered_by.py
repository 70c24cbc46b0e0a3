# SPDX-License-Identifier: Apache-2.0
"""Version 0003 of the tables: what answered in place of the model that a request named."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the column; the requests that are there were answered by the model that they named."""
    op.add_column("gateway_requests", sa.Column("answered_by", sa.Text, nullable=False, server_default=""))
