# SPDX-License-Identifier: Apache-2.0
"""Version 0002 of the tables: the ledger's requests, and what each key has spent on each day."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Create the tables of the ledger."""
    op.create_table(
        "gateway_requests",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("day", sa.Integer, nullable=False),
        sa.Column("begun_at_s", sa.Double, nullable=False),
        sa.Column("key_id", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("endpoint", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("release", sa.BigInteger),
        sa.Column("prompt_tokens", sa.BigInteger, nullable=False),
        sa.Column("completion_tokens", sa.BigInteger, nullable=False),
        sa.Column("cached_tokens", sa.BigInteger),
        sa.Column("ttft_s", sa.Double),
        sa.Column("duration_s", sa.Double),
        sa.Column("cost_nano_usd", sa.BigInteger, nullable=False),
        sa.Column("finish", sa.Text, nullable=False),
    )
    op.create_index("gateway_requests_by_day", "gateway_requests", ["day"])
    op.create_table(
        "gateway_spending",
        sa.Column("key_id", sa.Text, primary_key=True),
        sa.Column("day", sa.Integer, primary_key=True),
        sa.Column("cost_nano_usd", sa.BigInteger, nullable=False),
    )
