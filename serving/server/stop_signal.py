# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM, counted: the first asks for an orderly stop, the second means "now"."""

import signal
import threading
from types import FrameType


class StopSignal:
    """Takes both signals over from its construction on; made by the main thread."""

    def __init__(self) -> None:
        self.count = 0
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Whether a signal has come, waiting for it."""
        return self._event.wait(timeout_s)
