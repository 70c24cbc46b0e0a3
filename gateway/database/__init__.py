# SPDX-License-Identifier: Apache-2.0
"""The database of a gateway: a file of SQLite or PostgreSQL, its tables, and their migration."""
