# SPDX-License-Identifier: Apache-2.0
"""The place in a file of a journal up to which its requests are in the ledger."""

from typing import NamedTuple


class JournalPlace(NamedTuple):
    """A place in a file of a journal.

    Attributes:
        file: its name, which no other file ever has.
        num_bytes: up to which the requests that ended are in the ledger.
        is_whole: all requests are in the ledger, those without an end too; nobody writes to the file any more.
    """

    file: str
    num_bytes: int = 0
    is_whole: bool = False
