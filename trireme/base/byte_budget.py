# SPDX-License-Identifier: Apache-2.0
"""The limit of bytes of requests that may be on their way at once."""

from trireme.base.errors import Unavailable

# Smaller requests are taken at any time: many small requests are what a server is for.
_SMALL = 1 << 20


class ByteBudget:
    """The budget of bytes for the large requests of all clients together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken = 0

    def take(self, num_bytes: int) -> None:
        """Count a request that has been announced.

        Raises:
            Unavailable: too many bytes are on their way.
        """
        if num_bytes > _SMALL and self._taken + num_bytes > self._max_bytes:
            raise Unavailable(
                f"{self._taken} bytes of large requests are on their way, and {self._max_bytes} at most are taken at "
                "once; try again",
                reason="too_many_bytes",
            )
        self._taken += num_bytes

    def give(self, num_bytes: int) -> None:
        """Give back the bytes of a request that has arrived, or will not come."""
        self._taken -= num_bytes
