# SPDX-License-Identifier: Apache-2.0
"""The tables of a gateway's database, as the statements of today use them; `migrations` makes them."""

from sqlalchemy import (
    JSON,
    BigInteger,
    CheckConstraint,
    Column,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

VERSION_TABLE = "gateway_schema"  # not Alembic's usual name, which another program's tables may have here
METADATA = MetaData()

# Times are seconds since 1970.
KEYS = Table(
    "gateway_keys",
    METADATA,
    Column("id", String(12), primary_key=True),
    Column("secret_sha256", LargeBinary(32), nullable=False),
    Column("name", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("role", Text, CheckConstraint("role in ('user', 'admin')", name="gateway_key_roles"), nullable=False),
    Column("models", JSON(none_as_null=True)),  # names; null: all
    Column("limits", JSON, nullable=False),  # the fields of KeyLimits that are set
    Column("created_at_s", BigInteger, nullable=False),
    Column("expires_at_s", BigInteger),
    Column("revoked_at_s", BigInteger),
    Column("last_used_at_s", BigInteger),
    Column("change_number", BigInteger, nullable=False),  # the last change of the key
    Index(
        "gateway_key_names",
        "name",
        unique=True,
        sqlite_where=text("revoked_at_s is null"),
        postgresql_where=text("revoked_at_s is null"),
    ),
    Index("gateway_keys_by_change", "change_number"),
)

# One row. Whoever changes a key counts up first, in the same transaction, and so the changes are one after the other.
CHANGES = Table("gateway_key_changes", METADATA, Column("number", BigInteger, nullable=False))
