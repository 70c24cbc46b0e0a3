# SPDX-License-Identifier: Apache-2.0
"""Signals, which are counted and heard at any moment; and callers, which are not counted."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from serving.supervisor.stop_signal import StopSignal
from trireme.base.project_files import CODE_ROOT

WAIT_S = 20.0

STORM = """
import random, signal
from serving.supervisor.stop_signal import StopSignal

for _ in range(500):
    stop = StopSignal()
    signal.signal(signal.SIGALRM, signal.getsignal(signal.SIGTERM))
    signal.setitimer(signal.ITIMER_REAL, 0.0001 + 0.0003 * random.random())
    while not stop.wait(0.00001):
        pass
print("heard")
"""


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield StopSignal()
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_counted_and_asks_for_a_stop(stop: StopSignal) -> None:
    assert not stop.wait(0)
    assert not stop.wait_for_signal(0)
    for count in (1, 2):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait_for_signal(WAIT_S)
        assert stop.wait(0)
        assert stop.count == count


def test_a_caller_wakes_who_waits_and_is_no_signal(stop: StopSignal) -> None:
    caller = threading.Timer(0.1, stop.ask)
    caller.start()
    assert stop.wait(WAIT_S)
    caller.join()
    assert not stop.wait_for_signal(0)
    assert stop.count == 0


def test_a_signal_at_any_moment_of_the_wait_does_not_stop_it_for_good() -> None:
    """With a threading.Event the handler waits for a lock that it has interrupted itself."""
    done = subprocess.run(
        [sys.executable, "-c", STORM], cwd=CODE_ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.stdout == "heard\n", done.stderr
