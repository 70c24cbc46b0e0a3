# SPDX-License-Identifier: Apache-2.0
"""The run of a load generator of another project: its place, its process, and the server's metrics meanwhile."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from rich.console import Console

from clients.access import NO_ACCESS, Access
from clients.load.processes import noted_signals
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import Run, RunInfo, write_run
from clients.load_run.server_samples import ServerSample, ServerWatch
from trireme.base.errors import ServerError, SpecError
from trireme.base.project_files import CODE_ROOT

_TOOLS = CODE_ROOT / ".tools"  # of a checkout
_POLL_S = 0.5
_STOP_S = 5.0  # from SIGTERM to SIGKILL
_KEEP_S = 180.0  # from SIGTERM to SIGKILL, of a tool that waits for the answers that it has asked for
_SHOWN_LINES = 5, 12  # of a program that failed: perf_analyzer says why first, before its options; others last


class ToolRun(NamedTuple):
    """The results of a tool's process."""

    output: str
    start_epoch_ns: int
    samples: list[ServerSample]
    metrics_failure: str | None
    cpu: list[list[CpuSample]]
    was_interrupted: bool


def find_tool(name: str, place: str, *, given: Path | None, how: str) -> Path:
    """Return the path of a program: the named one, the one in the checkout's `.tools`, or the one on PATH.

    Args:
        place: within `.tools`.
        how: how to install the program, in words.

    Raises:
        SpecError: there is none.
    """
    if given is not None:
        if not given.is_file():
            raise SpecError(f"{given} is not there; --binary names the program {name}", field="binary")
        return given
    found = _TOOLS / place
    if found.is_file():
        return found
    on_path = shutil.which(name)
    if on_path is None:
        raise SpecError(f"{name} is not installed: {how}; or name it with --binary", field="binary")
    return Path(on_path)


def run_tool(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    metrics: str | None,
    access: Access = NO_ACCESS,
    what: str,
    is_shown: bool = False,
    keeps_what_it_has: bool = False,
) -> ToolRun:
    """Run a program to its end, reading the server's metrics meanwhile.

    Ctrl-C, SIGTERM or SIGHUP end it with every process that it started; a second one does so at once.

    Args:
        access: certificates and the key for metrics that are read over https.
        what: name of the program, for messages.
        is_shown: its output goes to the terminal as it comes; `output` is empty then.
        keeps_what_it_has: it leaves its results on SIGTERM, and ends its own processes; that is its end and not ours.

    Raises:
        KeyboardInterrupt: a signal ended it.
        ServerError: it failed; with the beginning and the end of what it said.
    """
    start_epoch_ns, start_ns = time.time_ns(), time.monotonic_ns()
    watch = ServerWatch(metrics, start_ns=start_ns, access=access) if metrics else None
    output = cwd / "output.txt"
    console = Console(stderr=True)
    with contextlib.ExitStack() as held:
        file = held.enter_context(output.open("w+b"))
        if watch is not None:
            held.enter_context(watch)
        if console.is_terminal and not is_shown:
            held.enter_context(console.status(f"{what} is running"))
        stdout = None if is_shown else file
        signals = held.enter_context(noted_signals())
        # In a session of its own: what it starts, such as genai-perf's perf_analyzer, is ended with it.
        process = subprocess.Popen(
            command, cwd=cwd, env={**os.environ, **(env or {})}, stdout=stdout, stderr=stdout, start_new_session=True
        )
        cpu: list[CpuSample] = []
        try:
            _watch(process, start_ns, cpu, signals)
            was_interrupted = process.poll() is None
            if was_interrupted:
                _stop(process, keeps_what_it_has=keeps_what_it_has)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if was_interrupted and not keeps_what_it_has:
            raise KeyboardInterrupt
    text = output.read_text(errors="replace")
    output.unlink()
    if process.returncode and not was_interrupted:
        said = _ends_of(text.splitlines())
        raise ServerError(f"{what} ended with status {process.returncode}: {said or 'see above'}")
    return ToolRun(
        output=text,
        start_epoch_ns=start_epoch_ns,
        samples=watch.samples if watch else [],
        metrics_failure=watch.failure if watch else "not read",
        cpu=[cpu],
        was_interrupted=was_interrupted,
    )


def keep_run(out: Path, info: RunInfo, found: ToolRun, records: list[LoadRecord]) -> Run:
    """Write the folder of a tool's run, in which times count from the first request; records and `info` are changed.

    Raises:
        ServingError: it cannot be written.
    """
    first_ns = min((record.due_ns for record in records), default=0)
    for record in records:
        record.shift(-first_ns)
    samples = [ServerSample(sample.at_ns - first_ns, sample.values) for sample in found.samples]
    info.cpu = [[CpuSample(sample.at_ns - first_ns, sample.cpu_s) for sample in samples] for samples in found.cpu]
    info.metrics_failure = found.metrics_failure
    write_run(out, info, records, samples)
    return Run(path=out, info=info, records=records, samples=samples)


def _ends_of(lines: Sequence[str]) -> str:
    """Return the first lines and the last, and how many are left out between them."""
    first, last = _SHOWN_LINES
    num_between = len(lines) - first - last
    if num_between > 0:
        lines = [*lines[:first], f"... {num_between} lines ...", *lines[-last:]]
    return "\n".join(lines)


def _watch(process: "subprocess.Popen[bytes]", start_ns: int, samples: list[CpuSample], signals: Sequence[int]) -> None:
    """Wait for the end of a process, or a signal, and sample the CPU time of the process and its children."""
    seen = psutil.Process(process.pid)
    while process.poll() is None and not signals:
        with contextlib.suppress(psutil.Error):
            used_s = sum(sum(each.cpu_times()[:2]) for each in [seen, *seen.children(recursive=True)])
            samples.append(CpuSample(time.monotonic_ns() - start_ns, used_s))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)


def _stop(process: "subprocess.Popen[bytes]", *, keeps_what_it_has: bool) -> None:
    """Ask a process to end, and wait for that as long as it may take."""
    with contextlib.suppress(subprocess.TimeoutExpired, ProcessLookupError):
        if keeps_what_it_has:  # its own processes have to tell it what they have
            process.terminate()
            process.wait(_KEEP_S)
        else:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_STOP_S)
