# SPDX-License-Identifier: Apache-2.0
"""A process stopped for long, which ends when it goes on, before it does anything else; other processes live."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

CODE = """
import sys, threading, time
from serving.process.resumed_process import end_when_resumed
end_when_resumed()
def talk():
    while True:
        print("beat", flush=True)
        time.sleep(0.001)
threading.Thread(target=talk, daemon=True).start()
time.sleep(60)  # as a stub waits for Triton
"""


@pytest.fixture
def stub() -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "beat\n"
        yield process
        process.kill()


def stop(process: "subprocess.Popen[str]", seconds: float) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(seconds)
    process.send_signal(signal.SIGCONT)


def test_one_that_was_stopped_for_a_second_ends_at_once(stub: "subprocess.Popen[str]") -> None:
    stop(stub, 1.0)
    assert stub.wait(5) == 1
    assert stub.stderr is not None
    assert stub.stderr.read().startswith("this process was stopped for so long")


def test_one_that_was_stopped_for_a_moment_or_not_at_all_lives(stub: "subprocess.Popen[str]") -> None:
    for _ in range(3):
        stop(stub, 0.1)
        time.sleep(0.1)
    for _ in range(20):
        stub.send_signal(signal.SIGCONT)
    time.sleep(0.3)
    assert stub.poll() is None
