# SPDX-License-Identifier: Apache-2.0
"""The report to the models of clients that have left.

Triton tells a model late that a client has left, or, in an ensemble of its own, not at all. So each stream has a name,
which reaches the models as a parameter of its requests, and their control channels are told the names of the streams
which have lost their clients.
"""

import asyncio
import itertools
import secrets
from collections.abc import Iterable
from pathlib import Path

from serving.process.control_channel import tell_left
from serving.process.pinned_streams import pin, unpin

_APART_S = 0.15
_GATHER_S = 0.005  # many leave at once when a connection ends
_MAX_TOLD = 10_000  # names in one message


class Departures:
    """The streams which have lost their clients, kept by the event loop of one process."""

    def __init__(self) -> None:
        self.run_dir: Path | None = None  # run dir of the server; None: there is no server now
        self.frontend = secrets.token_hex(4)  # the part of the names that is this process's
        self._numbers = itertools.count()
        self._left: list[str] = []
        self._telling: asyncio.Task[None] | None = None

    def new_name(self) -> str:
        """Return a name for a stream that no client can know."""
        return f"{self.frontend}-{next(self._numbers)}"

    def pin(self, name: str) -> None:
        """Record that a stream names the version of a model, before the models have its request."""
        if self.run_dir is not None:
            pin(self.run_dir, name)

    def unpin(self, name: str) -> None:
        """Forget a stream that has named a version, as it has ended."""
        if self.run_dir is not None:
            unpin(self.run_dir, name)

    def leave(self, names: Iterable[str]) -> None:
        """Record that the clients of these streams left before the end; the models are told soon."""
        self._left += names
        if self._left and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._tell())

    def leave_later(self, names: list[str]) -> None:
        """Tell the models in a while: Triton is told at once, and its handlers race with an answer that comes then."""
        asyncio.get_running_loop().call_later(_APART_S, self.leave, names)

    async def _tell(self) -> None:
        try:
            while self._left:
                await asyncio.sleep(_GATHER_S)
                told, self._left = self._left[:_MAX_TOLD], self._left[_MAX_TOLD:]
                if self.run_dir is not None:
                    await asyncio.to_thread(tell_left, self.run_dir, told)
        finally:
            self._telling = None
