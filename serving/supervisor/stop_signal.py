# SPDX-License-Identifier: Apache-2.0
"""The request to stop the server: Ctrl-C and SIGTERM, counted, the second meaning "now"; or a caller, uncounted."""

import contextlib
import os
import select
import signal
from types import FrameType


class StopSignal:
    """A handler of SIGINT and SIGTERM from its construction on, which the main thread has to make."""

    def __init__(self) -> None:
        self.count = 0
        self._signal, self._asked = _Latch(), _Latch()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._signal.set()
        self._asked.set()

    def ask(self) -> None:
        """Ask for a stop without a signal, from any thread."""
        self._asked.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait until a stop is asked for, and return whether it was within `timeout_s`."""
        return self._asked.wait(timeout_s)

    def wait_for_signal(self, timeout_s: float) -> bool:
        """Wait until a signal comes, and return whether one did within `timeout_s`."""
        return self._signal.wait(timeout_s)


class _Latch:
    """An event like threading.Event that a signal's handler can set.

    The lock of an Event may be held by the very thread that the handler interrupts.
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def set(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it cannot count any further
            os.eventfd_write(self._descriptor, 1)

    def wait(self, timeout_s: float) -> bool:
        found = select.poll()
        found.register(self._descriptor, select.POLLIN)
        return bool(found.poll(timeout_s * 1000))
