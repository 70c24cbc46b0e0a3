# SPDX-License-Identifier: Apache-2.0
"""Version 0001 of the tables: keys, and the number of their last change."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "gateway_keys",
        sa.Column("id", sa.String(12), primary_key=True),
        sa.Column("secret_sha256", sa.LargeBinary(32), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("tenant", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("models", sa.JSON(none_as_null=True)),
        sa.Column("limits", sa.JSON, nullable=False),
        sa.Column("created_at_s", sa.BigInteger, nullable=False),
        sa.Column("expires_at_s", sa.BigInteger),
        sa.Column("revoked_at_s", sa.BigInteger),
        sa.Column("last_used_at_s", sa.BigInteger),
        sa.Column("change_number", sa.BigInteger, nullable=False),
        sa.CheckConstraint("role in ('user', 'admin')", name="gateway_key_roles"),
    )
    is_not_revoked = sa.text("revoked_at_s is null")
    op.create_index(
        "gateway_key_names",
        "gateway_keys",
        ["name"],
        unique=True,
        sqlite_where=is_not_revoked,
        postgresql_where=is_not_revoked,
    )
    op.create_index("gateway_keys_by_change", "gateway_keys", ["change_number"])
    op.create_table("gateway_key_changes", sa.Column("number", sa.BigInteger, nullable=False))
    op.execute("insert into gateway_key_changes (number) values (0)")
