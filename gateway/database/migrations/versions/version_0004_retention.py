# SPDX-License-Identifier: Apache-2.0
"""Version 0004 of the tables: sums of days whose requests were deleted, and how far journals are loaded."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "gateway_day_sums",
        sa.Column("day", sa.Integer, primary_key=True),
        *(
            sa.Column(name, sa.Text, primary_key=True)
            for name in ("key_id", "tenant", "endpoint", "model", "answered_by", "tier")
        ),
        sa.Column("release", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("finish", sa.Text, primary_key=True),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("requests", "prompt_tokens", "completion_tokens", "cached_tokens")
        ),
        sa.Column("ttft_s", sa.Double, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("num_ttft", "cost_nano_usd", "saved_nano_usd")),
    )
    op.create_table(
        "gateway_journal_places",
        sa.Column("file", sa.Text, primary_key=True),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("is_whole", sa.Boolean, nullable=False),
    )
