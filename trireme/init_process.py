# SPDX-License-Identifier: Apache-2.0
"""Process 1 of a container: it passes signals on to the command, and reaps orphans.

The kernel drops a signal to process 1 that it has no handler for, so SIGTERM does nothing until `trireme serve` has
set its own up, and nothing at all to most commands. And every process whose parent dies becomes a child of process 1:
where a tritonserver is killed, its stubs stay as zombies. Reaped in the command's own process they would take exit
statuses from `subprocess`; so that process is another one.
"""

import contextlib
import os
import signal
import sys

_PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_WAITED_FOR = (*_PASSED_ON, signal.SIGCHLD)


def leave_process_1() -> None:
    """Go on in a child process where this is process 1, which stays behind, and ends as the child does.

    To be called before there are threads: a child has none but its caller.
    """
    if os.getpid() != 1:
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_WAITED_FOR, signal.SIGTTOU))
    child = os.fork()
    if child:
        sys.exit(_status_of(child))
    os.setpgid(0, 0)  # Ctrl-C at a terminal comes to the child alone, not from process 1 once more
    if os.isatty(0):
        with contextlib.suppress(OSError):  # not our terminal
            os.tcsetpgrp(0, os.getpid())  # SIGTTOU is blocked, which would stop us here
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _status_of(command: int) -> int:
    """Return the command's exit status once it has ended; as a shell has it, where a signal ended it."""
    while True:
        number = signal.sigwait(_WAITED_FOR)
        if number != signal.SIGCHLD:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(command, number)
        elif (status := _reap(command)) is not None:
            return status if status >= 0 else 128 - status


def _reap(command: int) -> int | None:
    """Reap every child that has ended.

    Returns:
        The command's exit status, below 0 for a signal's, or None if the command has not ended.
    """
    found = None
    with contextlib.suppress(ChildProcessError):  # nobody is left
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            if ended[0] == command:
                found = os.waitstatus_to_exitcode(ended[1])
    return found
