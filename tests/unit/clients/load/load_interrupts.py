# SPDX-License-Identifier: Apache-2.0
"""What happens to a load of the built-in client in its middle."""

import os
import signal
from collections.abc import Callable

from clients.load_run.load_record import LoadRecord


def once_done(action: Callable[[], None]) -> Callable[[list[LoadRecord]], None]:
    """For `told`: do it when some requests have ended; by a clock, a slow start of the processes would come first."""
    ended: list[LoadRecord] = []

    def told(records: list[LoadRecord]) -> None:
        was_enough = len(ended) >= 4
        ended.extend(records)
        if len(ended) >= 4 and not was_enough:
            action()

    return told


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
