# SPDX-License-Identifier: Apache-2.0
"""Asynchronous work a step at a time, and Ctrl-C at any moment of a step."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from clients.stepped_loop import SteppedLoop


class Work:
    """Steps that say which of them ended."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.num_running = 0

    async def step(self) -> None:
        self.num_running += 1
        try:
            await asyncio.sleep(20)
        finally:
            self.num_running -= 1
            self.ended.append("step")

    async def next_one(self) -> str:
        self.ended.append("next")
        return "next"


@pytest.fixture(autouse=True)
def ctrl_c_raises() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_when_a_handler_is_set(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    """Let Ctrl-C come as the loop begins: right before its own handler is there, or right behind."""
    real: Callable[..., Any] = signal.signal

    def set_and_interrupt(number: int, handler: Any) -> Any:
        monkeypatch.setattr(signal, "signal", real)
        if before:
            signal.raise_signal(signal.SIGINT)
        found = real(number, handler)
        signal.raise_signal(signal.SIGINT)
        return found

    monkeypatch.setattr(signal, "signal", set_and_interrupt)


@pytest.mark.parametrize("before", [True, False], ids=["before its handler", "behind its handler"])
def test_ctrl_c_while_a_step_begins_ends_that_step_and_no_other(monkeypatch: pytest.MonkeyPatch, before: bool) -> None:
    work = Work()
    with SteppedLoop() as loop:
        assert loop.run(work.next_one()) == "next"
        interrupt_when_a_handler_is_set(monkeypatch, before=before)
        with pytest.raises(KeyboardInterrupt):
            loop.run(work.step())
        assert loop.run(work.next_one()) == "next"
    assert work.ended in (["next", "next"], ["next", "step", "next"])  # it may begin, and has ended then
    assert work.num_running == 0


def test_ctrl_c_while_a_step_runs_ends_that_step_before_the_next() -> None:
    work = Work()

    async def interrupted() -> None:
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await work.step()

    with SteppedLoop() as loop:
        with pytest.raises(KeyboardInterrupt):
            loop.run(interrupted())
        assert work.ended == ["step"]
        assert loop.run(work.next_one()) == "next"


def test_an_error_of_a_step_is_its_callers() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with SteppedLoop() as loop, pytest.raises(ValueError, match="no"):
        loop.run(fails())


def test_the_runner_of_the_standard_library_still_forgets_such_a_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner() as runner:
        interrupt_when_a_handler_is_set(monkeypatch, before=False)
        with pytest.raises(asyncio.CancelledError):
            runner.run(Work().step())
