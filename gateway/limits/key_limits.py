# SPDX-License-Identifier: Apache-2.0
"""The limits that a key may have."""

from typing import NamedTuple


class KeyLimits(NamedTuple):
    """The limits of a key, or of a tenant; None: there is none.

    Attributes:
        requests_per_minute: that may begin.
        tokens_per_minute: of prompts and answers together.
        streams: requests that may run at a time.
        nano_usd_per_day, nano_usd_per_month: that requests may cost in a day or a month of UTC, in billionths of a US
            dollar.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    streams: int | None = None
    nano_usd_per_day: int | None = None
    nano_usd_per_month: int | None = None

    @property
    def has_rates(self) -> bool:
        """Return whether there is a limit of a minute or of streams."""
        return (self.requests_per_minute, self.tokens_per_minute, self.streams) != (None, None, None)

    @property
    def has_budget(self) -> bool:
        """Return whether there is a limit of costs."""
        return (self.nano_usd_per_day, self.nano_usd_per_month) != (None, None)


NO_LIMITS = KeyLimits()


def nano_usd(usd: float | None) -> int | None:
    """Return dollars in billionths."""
    return None if usd is None else round(usd * 10**9)
