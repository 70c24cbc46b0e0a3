# SPDX-License-Identifier: Apache-2.0
"""A command that is process 1 of its namespace: exit statuses, signals, and children of others."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from pid_namespace import IN_PID_NAMESPACE, process_1, skip_without_pid_namespaces, zombies

from trireme.base.project_files import CODE_ROOT
from trireme.init_process import leave_process_1

BEGIN = "import os, signal, subprocess, sys, time\nimport trireme.init_process as init\ninit.leave_process_1()\n"
WAIT_S = 20.0

Run = Callable[[str], "subprocess.Popen[bytes]"]


@pytest.fixture
def run() -> Iterator[Run]:
    """Yield `run(program)`, which runs a program in a namespace of its own, behind `leave_process_1`."""
    skip_without_pid_namespaces()
    started: list[subprocess.Popen[bytes]] = []

    def start(program: str) -> "subprocess.Popen[bytes]":
        command = [*IN_PID_NAMESPACE, sys.executable, "-c", BEGIN + program]
        started.append(subprocess.Popen(command, cwd=CODE_ROOT, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            process_1(process).kill()  # and all others of the namespace with it
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line_of(process: "subprocess.Popen[bytes]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().decode().strip()


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        pytest.param("sys.exit(0)", 0, id="success"),
        pytest.param("sys.exit(2)", 2, id="refusal"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", 128 + 9, id="killed"),
    ],
)
def test_it_ends_with_the_status_of_the_command(run: Run, program: str, expected: int) -> None:
    assert run(program).wait(WAIT_S) == expected


def test_sigterm_ends_a_command_without_a_handler(run: Run) -> None:
    process = run("print(os.getpid(), flush=True); time.sleep(60)")
    assert int(line_of(process)) != 1
    process_1(process).send_signal(signal.SIGTERM)
    assert process.wait(WAIT_S) == 128 + signal.SIGTERM


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_handler_of_the_command_has_the_signal_once(run: Run, number: signal.Signals) -> None:
    process = run(
        f"seen = []\nsignal.signal({number}, lambda *_: seen.append(1))\nprint('ready', flush=True)\n"
        "while not seen: time.sleep(0.01)\ntime.sleep(0.3)\nsys.exit(40 + len(seen))"
    )
    assert line_of(process) == "ready"
    process_1(process).send_signal(number)
    assert process.wait(WAIT_S) == 41


def test_orphans_are_reaped_and_the_command_has_the_statuses_of_its_own_children(run: Run) -> None:
    process = run(
        "for _ in range(20): subprocess.run(['sh', '-c', 'sleep 0.05 & sleep 0.05 & exit 0'], check=True)\n"
        "found = {subprocess.run(['sh', '-c', f'exit {n}']).returncode for n in range(20)}\n"
        "print(found == set(range(20)), flush=True)\ntime.sleep(60)"
    )
    assert line_of(process) == "True"
    deadline_s = time.monotonic() + WAIT_S
    while zombies(process) or len(psutil.Process(process.pid).children(recursive=True)) > 2:  # process 1, the command
        assert time.monotonic() < deadline_s, zombies(process)
        time.sleep(0.02)


def test_a_process_that_is_not_1_goes_on_as_it_is() -> None:
    before = psutil.Process().children()
    leave_process_1()
    assert psutil.Process().children() == before
