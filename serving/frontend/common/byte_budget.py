# SPDX-License-Identifier: Apache-2.0
"""How many bytes of requests may be on their way at once."""

from trireme.base.errors import Unavailable

# What is smaller is taken at any time: many small requests are what a server is for.
_SMALL = 1 << 20


class ByteBudget:
    """The large requests of all clients together."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken = 0

    def take(self, num_bytes: int) -> None:
        """Count a request that has been announced.

        Raises:
            Unavailable: too many are on their way.
        """
        if num_bytes > _SMALL and self._taken + num_bytes > self._max_bytes:
            raise Unavailable(
                f"{self._taken} bytes of large requests are on their way, and {self._max_bytes} at most are taken at "
                "once; try again",
                reason="too_many_bytes",
            )
        self._taken += num_bytes

    def give(self, num_bytes: int) -> None:
        """Give back what was taken: the request is there, or will not come."""
        self._taken -= num_bytes
