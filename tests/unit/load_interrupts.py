# SPDX-License-Identifier: Apache-2.0
"""What happens to a load of the built-in client in its middle."""

import os
import signal
from collections.abc import Callable


def once_done(action: Callable[[], None]) -> Callable[[int, int], None]:
    """For `told`: do it when some requests have ended; by a clock, a slow start of the processes would come first."""
    has_acted = False

    def told(num_done: int, _num_failed: int) -> None:
        nonlocal has_acted
        if num_done >= 4 and not has_acted:
            has_acted = True
            action()

    return told


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)
