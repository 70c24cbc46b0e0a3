# SPDX-License-Identifier: Apache-2.0
"""Events in the middle of a load of the built-in client."""

import os
import signal
from collections.abc import Callable

from clients.load_run.load_record import LoadRecord


def once_done(action: Callable[[], None]) -> Callable[[list[LoadRecord]], None]:
    """Return a callback for `run_processes` that acts once, when some requests have ended.

    By a clock, a slow start of the processes could come first.
    """
    ended: list[LoadRecord] = []

    def note(records: list[LoadRecord]) -> None:
        was_enough = len(ended) >= 4
        ended.extend(records)
        if len(ended) >= 4 and not was_enough:
            action()

    return note


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
