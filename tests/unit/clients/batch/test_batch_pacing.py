# SPDX-License-Identifier: Apache-2.0
"""The number of a batch job's requests in flight: what makes it more, fewer, and none for a while."""

import asyncio
import random

import pytest

from clients.batch.gate import Gate
from clients.batch.retry_policy import FailureKind, Pauses, failure_kind_of, line_error
from clients.batch.window import FIRST, Window
from trireme.base.errors import (
    QueueFull,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    Unavailable,
)


def answered(window: Window, count: int, *, was_full: bool = True) -> None:
    for _ in range(count):
        window.note_answer(1.0, was_full=was_full)


def test_it_doubles_each_round_up_to_its_ceiling() -> None:
    window = Window(30)
    assert window.size == FIRST == 8
    answered(window, 8)
    assert window.size == 16
    answered(window, 100)
    assert window.size == 30
    assert Window(3).size == 3


def test_it_does_not_grow_while_there_is_nothing_to_fill_it() -> None:
    window = Window(100)
    answered(window, 50, was_full=False)
    assert window.size == 8


def test_a_round_of_refusals_is_one_cut_and_then_it_grows_by_one_a_round() -> None:
    window = Window(100)
    answered(window, 12)
    for sent_s in (1.0, 1.1, 1.2):
        window.note_refusal(sent_s, now_s=2.0)
    assert window.size == 14  # 0.7 * 20
    window.note_refusal(2.5, now_s=3.0)
    assert window.size == 9  # 0.7 * 14
    answered(window, 10)
    assert window.size == 10


def test_it_never_falls_below_one() -> None:
    window = Window(100)
    for now_s in range(1, 40):
        window.note_refusal(now_s, now_s)
    assert window.size == 1


def test_after_a_loss_it_begins_with_one() -> None:
    window = Window(100)
    answered(window, 20)
    window.note_loss()
    assert (window.size, window.gap_s) == (1, 0.0)
    answered(window, 3)
    assert window.size == 4


def test_sends_are_spread_over_half_of_the_mean_interval() -> None:
    window = Window(8)
    assert window.gap_s == 0.0
    window.note_answer(4.0, was_full=False)
    assert window.gap_s == pytest.approx(0.5 * 4.0 / 8)


async def _inside(gate: Gate) -> int:
    for _ in range(5):
        await asyncio.sleep(0)
    return gate.num_inside


def test_the_gate_lets_in_as_many_as_the_window_says_and_retries_first() -> None:
    async def run() -> None:
        gate, order = Gate(Window(2)), []

        async def enter(name: str, *, is_again: bool = False) -> None:
            await gate.enter(is_again=is_again)
            order.append(name)

        tasks = [asyncio.create_task(enter(name)) for name in "abc"]
        assert await _inside(gate) == 2
        tasks.append(asyncio.create_task(enter("again", is_again=True)))
        assert await _inside(gate) == 2
        gate.leave()
        assert await _inside(gate) == 2
        assert order == ["a", "b", "again"]
        gate.leave()
        await asyncio.gather(*tasks)
        assert order[-1] == "c"

    asyncio.run(run())


def test_a_pause_keeps_everybody_out_and_ends_by_itself() -> None:
    async def run() -> None:
        gate, loop = Gate(Window(8)), asyncio.get_running_loop()
        gate.pause(0.2)
        gate.pause(0.1)  # they do not add up, nor does a shorter one end a longer one
        began_s = loop.time()
        await asyncio.gather(gate.enter(), gate.enter())
        assert loop.time() - began_s >= 0.19

    asyncio.run(run())


def test_the_gate_leaves_the_gap_between_two_sends() -> None:
    async def run() -> None:
        window, loop = Window(8), asyncio.get_running_loop()
        gate = Gate(window)
        window.note_answer(0.8, was_full=False)  # a gap of 50 ms
        began_s = loop.time()
        for _ in range(4):
            await gate.enter()
        assert loop.time() - began_s >= 3 * 0.049

    asyncio.run(run())


def test_who_gives_up_at_the_gate_takes_no_place() -> None:
    async def run() -> None:
        gate = Gate(Window(1))
        await gate.enter()
        waiting = asyncio.create_task(gate.enter())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        gate.leave()
        await asyncio.wait_for(gate.enter(), 5)
        assert gate.num_inside == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("no", field="top_p"), FailureKind.WRONG),
        (RequestError("no", field="priority"), FailureKind.UNFIT),
        (RequestError("no", field="tenant"), FailureKind.UNFIT),
        (RequestError("no", field="model"), FailureKind.AWAY),
        (QueueFull("no", reason="queue_full", retry_after_ms=5), FailureKind.BUSY),
        (Unavailable("no", reason="overload", retry_after_ms=5), FailureKind.BUSY),
        (Unavailable("no", reason="shedding", retry_after_ms=5), FailureKind.BUSY),
        (Unavailable("no", reason="engine_not_loaded"), FailureKind.AWAY),
        (RequestTimeout("no", reason="queue_timeout_ms"), FailureKind.BUSY),
        (RequestTimeout("no"), FailureKind.LOST),
        (Unavailable("no", reason="engine_restarting"), FailureKind.AWAY),
        (Unavailable("no", reason="unreachable"), FailureKind.AWAY),
        (Unavailable("no", reason="draining"), FailureKind.AWAY),
        (Unavailable("no", reason="engine_died"), FailureKind.LOST),
        (Unavailable("no", reason="connection_lost"), FailureKind.LOST),
        (RequestCancelled("no"), FailureKind.LOST),
        (ServerError("no"), FailureKind.LOST),
    ],
    ids=str,
)
def test_what_an_error_means_for_a_line(error: ServingError, kind: FailureKind) -> None:
    assert failure_kind_of(error) is kind


def test_a_pause_is_the_server_s_hint_with_some_chance_added() -> None:
    pauses = Pauses(random.Random(1))
    found = {pauses.after(Unavailable("no", retry_after_ms=400), sent_s=0.0, now_s=0.0) for _ in range(20)}
    assert len(found) == 20
    assert all(0.4 <= pause_s <= 0.5 for pause_s in found)
    assert pauses.after(Unavailable("no", retry_after_ms=3_600_000), sent_s=0.0, now_s=0.0) <= 75


def test_without_a_hint_pauses_double_with_each_round_and_begin_anew_after_an_answer() -> None:
    pauses = Pauses(random.Random(1))
    found = [pauses.after(ServerError("no"), sent_s=now_s, now_s=now_s) for now_s in range(8)]
    for pause_s, most_s in zip(found, (0.5, 1, 2, 4, 8, 15, 15, 15), strict=True):
        assert most_s / 2 <= pause_s <= most_s
    pauses.note_answer()
    assert pauses.after(ServerError("no"), sent_s=9.0, now_s=9.0) <= 0.5
    assert pauses.after(ServerError("no"), sent_s=8.5, now_s=9.1) == 0.0  # of the same round


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestError("no", field="top_p"), 400, "invalid_value"),
        (Unavailable("no"), 503, "unavailable"),
        (RequestTimeout("no"), 504, "timeout"),
        (ServerError("no"), 500, "server_error"),
    ],
)
def test_a_line_that_is_given_up_says_why(error: ServingError, status: int, code: str) -> None:
    found = line_error(error, attempts=5)
    assert (found.status, found.code) == (status, code)
