# SPDX-License-Identifier: Apache-2.0
"""A program run to its end in a process group of its own, with its output in a log; its failures stay there."""

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from build_engines.prove.check import CheckFailed
from build_engines.stages.stage_process import last_lines


def run_child(argv: Sequence[object], *, cwd: Path, log: Path, timeout_s: float) -> int:
    """Run a program; its exit status.

    Args:
        argv: program and arguments.
        cwd: where it runs.
        log: file that the output is added to.
        timeout_s: time limit, after which the program is killed with all that it has started.

    Raises:
        CheckFailed: the program cannot be started, was ended by a signal, or takes longer.
    """
    words = [str(word) for word in argv]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        output.write(f"$ cd {shlex.quote(str(cwd))} && {shlex.join(words)}\n".encode())
        output.flush()
        try:
            process = subprocess.Popen(
                words,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        except OSError as exc:
            raise CheckFailed(f"cannot start {words[0]}: {exc.strerror}") from exc
    try:
        status = process.wait(timeout=timeout_s)
    except subprocess.TimeoutExpired as exc:
        raise CheckFailed(f"{Path(words[0]).name} did not end within {timeout_s:.0f} s", last_lines(log)) from exc
    finally:
        end_group(process)
    if status < 0:
        name = signal.Signals(-status).name
        raise CheckFailed(f"{Path(words[0]).name} was ended by {name}", last_lines(log))
    return status


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process that was started as the first of its group, workers on the GPU included."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
