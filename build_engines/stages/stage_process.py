# SPDX-License-Identifier: Apache-2.0
"""A command of a build, run under `build_engines.stages.stage_guard` with its output in a log."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from build_engines.stages.stage_guard import EXIT_SIGNAL
from trireme.base.errors import BuildError

_GUARD = Path(__file__).with_name("stage_guard.py")
_NUM_LINES = 20
_TAIL_BYTES = 64 << 10


class CommandFailed(BuildError):
    """The failure of a tool; its output is in `log`, the last lines of it in `tail`."""

    def __init__(self, message: str, *, log: Path) -> None:
        super().__init__(message, log=log)
        self.log = log
        self.tail = last_lines(log)


def run_command(argv: Sequence[str], *, cwd: Path, log: Path, lock: int, env: Mapping[str, str]) -> None:
    """Run a tool to its end; on an interrupt the tool is ended with all its workers first.

    Args:
        argv: program and arguments.
        cwd: where the tool runs, and what relative paths in `argv` are meant from.
        log: file that standard output and error are added to.
        lock: a file descriptor that is held open until nothing of the tool runs any more.
        env: added to our own environment.

    Raises:
        CommandFailed: the tool could not be started or ended with a status other than 0.
    """
    log.parent.mkdir(exist_ok=True)
    with log.open("ab") as output:
        output.write(f"{time.strftime('%F %T')} $ cd {cwd} && {shlex.join(argv)}\n".encode())
        output.flush()
        guard = subprocess.Popen(
            [sys.executable, "-I", str(_GUARD), *argv],
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **env},
            pass_fds=(lock,),
            start_new_session=True,
        )
    try:
        status = guard.wait()
    except BaseException:
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()
        raise
    finally:
        if guard.stdin is not None:
            guard.stdin.close()
    if status:
        raise CommandFailed(f"{argv[0]} {_how_it_ended(status)}", log=log)


def _how_it_ended(status: int) -> str:
    if status < 0:
        return f"could not be watched: its guard was ended by {_signal_name(-status)}"
    if status > EXIT_SIGNAL:
        name = _signal_name(status - EXIT_SIGNAL)
        return f"was ended by {name}" + (", as the kernel does when memory runs out" if name == "SIGKILL" else "")
    return f"ended with status {status}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_lines(log: Path, count: int = _NUM_LINES) -> list[str]:
    """Return the last lines of a log; none if there is no log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-count:]
    except OSError:
        return []
