# SPDX-License-Identifier: Apache-2.0
"""The limits that a key may have."""

from typing import NamedTuple


class KeyLimits(NamedTuple):
    """The limits of one key; None: there is none.

    Attributes:
        requests_per_minute: that may begin.
        tokens_per_minute: of prompts and answers together.
        streams: requests that may run at a time.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    streams: int | None = None


NO_LIMITS = KeyLimits()
