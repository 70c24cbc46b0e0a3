# SPDX-License-Identifier: Apache-2.0
"""A guard that runs one tool of a build, and outlives the build for as long as it takes to end the tool's processes.

    python stage_guard.py TOOL [ARGUMENT ...]

The build holds the other end of the standard input. When that closes, because the build wants the tool to end or
because it was killed itself, the tool's process group is asked to end and, after GRACE_S, killed. Whatever else this
process has inherited, such as the lock of the work folder, is let go of only then: nobody meets a half-dead build.
Standard library only; run as a file.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

GRACE_S = 5.0
EXIT_NOT_STARTED = 127
EXIT_SIGNAL = 128  # plus its number
_PR_SET_CHILD_SUBREAPER = 36


def main(argv: list[str]) -> int:
    """Return the tool's exit status, or a shell's where a signal ended the tool or it could not be started."""
    # Whatever the tool starts and leaves behind becomes our child, in whichever group it is, and can be waited for.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        # A group of its own: a Ctrl-C at the terminal is for the build, which then decides.
        tool = subprocess.Popen(argv, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as exc:
        print(f"cannot start {argv[0]}: {exc.strerror}", file=sys.stderr)  # noqa: T201 - goes to the stage's log
        return EXIT_NOT_STARTED
    ended = os.pidfd_open(tool.pid)
    ready, _, _ = select.select([sys.stdin, ended], [], [])
    if ended not in ready:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tool.pid, signal.SIGTERM)
        select.select([ended], [], [], GRACE_S)
        tool.kill()
    status = tool.wait()
    while leftover := _children():
        for pid in leftover:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return EXIT_SIGNAL - status if status < 0 else status


def _children() -> list[int]:
    pid = os.getpid()
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the tool would inherit
    sys.exit(main(sys.argv[1:]))
