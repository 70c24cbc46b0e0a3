# SPDX-License-Identifier: Apache-2.0
"""The tables of a gateway's database, as the statements of today use them; `migrations` makes them."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
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

# One row for each request; what each column holds is said at `LedgerRow`.
REQUESTS = Table(
    "gateway_requests",
    METADATA,
    Column("id", String(32), primary_key=True),
    Column("day", Integer, nullable=False),  # of its begin, in days since 1970
    Column("begun_at_s", Double, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("endpoint", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("answered_by", Text, nullable=False, server_default=""),
    Column("tier", Text, nullable=False, server_default=""),
    Column("release", BigInteger),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger),
    Column("ttft_s", Double),
    Column("duration_s", Double),
    Column("cost_nano_usd", BigInteger, nullable=False),
    Column("saved_nano_usd", BigInteger, nullable=False, server_default="0"),
    Column("finish", Text, nullable=False),
    Index("gateway_requests_by_day", "day"),
)

# The sums of the costs above, for budgets: written in the same transaction as the requests. `key_id` is that of a key,
# or the account of a tenant (`tenant:NAME`).
SPENDING = Table(
    "gateway_spending",
    METADATA,
    Column("key_id", Text, primary_key=True),
    Column("day", Integer, primary_key=True),
    Column("cost_nano_usd", BigInteger, nullable=False),
)

# The sums of requests of days that are over and whose rows were deleted, each by all that usage is summed up by.
DAY_SUMS = Table(
    "gateway_day_sums",
    METADATA,
    Column("day", Integer, primary_key=True),
    Column("key_id", Text, primary_key=True),
    Column("tenant", Text, primary_key=True),
    Column("endpoint", Text, primary_key=True),
    Column("model", Text, primary_key=True),
    Column("answered_by", Text, primary_key=True),
    Column("tier", Text, primary_key=True),
    Column("release", BigInteger, primary_key=True, autoincrement=False),  # NO_RELEASE: none answered
    Column("finish", Text, primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("ttft_s", Double, nullable=False),  # of all that have one, together
    Column("num_ttft", BigInteger, nullable=False),
    Column("cost_nano_usd", BigInteger, nullable=False),
    Column("saved_nano_usd", BigInteger, nullable=False),
)
NO_RELEASE = -1  # a part of a primary key is never null

# Up to where each file of a journal is loaded, written in the same transaction as its requests: a file that is read
# again, after the rows of its requests were deleted, must not bring them again.
JOURNAL_PLACES = Table(
    "gateway_journal_places",
    METADATA,
    Column("file", Text, primary_key=True),
    Column("num_bytes", BigInteger, nullable=False),
    Column("is_whole", Boolean, nullable=False),  # all is loaded, what had no end too
)
