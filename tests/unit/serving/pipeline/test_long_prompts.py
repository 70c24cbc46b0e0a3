# SPDX-License-Identifier: Apache-2.0
"""Requests with long text wait in lanes of their own, up to a limit, and end where no client waits for them."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from recording_tensor_sink import RecordingTensorSink

from serving.pipeline.long_prompts import LaneLimits, LongPrompt, LongPrompts, text_bytes
from serving.text.tokenization import LONG_TEXT_BYTES
from trireme.base.errors import QueueFull, RequestCancelled, RequestError, ServerError, Unavailable

KIB = 1024
DRAINING = Unavailable("the server is shutting down", reason="draining")
WAIT_S = 10.0


def tensors(num_bytes: int) -> dict[str, npt.NDArray[np.generic]]:
    return {"QUERY": np.array([[b"a" * num_bytes]], dtype=np.object_), "END_ID": np.array([[1]], dtype=np.int32)}


class Work:
    """A prompt and its outcome; its preparation waits for the test."""

    def __init__(self, prepare: Callable[[], Any] | None = None) -> None:
        self.sink = RecordingTensorSink()
        self.is_preparing, self.may_go_on = threading.Event(), threading.Event()
        self.has_begun = threading.Event()
        self.prompt = LongPrompt(prepare or self._prepare, lambda _: self.has_begun.set(), self.sink)

    def _prepare(self) -> str:
        self.is_preparing.set()
        assert self.may_go_on.wait(WAIT_S)
        return "prepared"


@pytest.fixture
def prompts() -> Iterator[LongPrompts]:
    lanes = (
        LaneLimits(100 * KIB, num_threads=1, max_waiting=2, max_waiting_bytes=150 * KIB),
        LaneLimits(float("inf"), num_threads=1, max_waiting=2, max_waiting_bytes=1000 * KIB),
    )
    made = LongPrompts(lanes)
    yield made
    made.close()


def started(prompts: LongPrompts, num_bytes: int) -> Work:
    """Return a prompt that is being prepared."""
    work = Work()
    assert prompts.take(tensors(num_bytes), work.prompt)
    assert work.is_preparing.wait(WAIT_S)
    return work


def waiting(prompts: LongPrompts, num_bytes: int) -> Work:
    work = Work()
    assert prompts.take(tensors(num_bytes), work.prompt)
    return work


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def test_short_text_is_left_to_its_caller(prompts: LongPrompts) -> None:
    work = Work()
    assert not prompts.take(tensors(LONG_TEXT_BYTES - 4), work.prompt)
    assert prompts.num_waiting == 0
    assert prompts.take(tensors(LONG_TEXT_BYTES - 3), work.prompt)
    assert work.is_preparing.wait(WAIT_S)
    work.may_go_on.set()


def test_many_short_strings_are_long_text_and_numbers_are_none() -> None:
    empty = np.array([[b""] * 5000], dtype=np.object_)
    assert text_bytes({"BAD_WORDS_DICT": empty}) == 20_000
    assert text_bytes({"input_ids": np.zeros((1, 10_000), np.int32)}) == 0
    batch = np.array([[b"a" * 10], [b"b" * 20]], dtype=np.object_)
    assert text_bytes({"QUERY": batch, "BAD_WORDS_DICT": empty}) == 38 + 20_000


def test_what_is_shorter_does_not_wait_for_what_is_longer(prompts: LongPrompts) -> None:
    long = started(prompts, 500 * KIB)
    shorter = started(prompts, 50 * KIB)
    shorter.may_go_on.set()
    assert shorter.has_begun.wait(WAIT_S)
    assert not long.has_begun.is_set()
    assert prompts.num_waiting == 1
    long.may_go_on.set()
    assert long.has_begun.wait(WAIT_S)
    wait_until(lambda: prompts.num_waiting == 0)


def test_one_too_many_is_refused_with_the_time_to_come_back(prompts: LongPrompts) -> None:
    working = started(prompts, 20 * KIB)
    first, second = waiting(prompts, 20 * KIB), waiting(prompts, 20 * KIB)
    third = Work()
    with pytest.raises(QueueFull, match="2 prompts of 40968 bytes wait to be tokenized; try again later") as caught:
        prompts.take(tensors(20 * KIB), third.prompt)
    assert caught.value.facts == {"reason": "long_prompts", "retry_after_ms": 40}
    assert third.sink.error is None
    for work in (working, first, second):
        work.may_go_on.set()
        assert work.has_begun.wait(WAIT_S)


def test_too_much_text_is_refused_and_one_that_is_larger_than_all_may_wait_alone(prompts: LongPrompts) -> None:
    working = started(prompts, 2000 * KIB)
    alone = waiting(prompts, 2000 * KIB)
    with pytest.raises(QueueFull):
        prompts.take(tensors(200 * KIB), Work().prompt)
    for work in (working, alone):
        work.may_go_on.set()
        assert work.has_begun.wait(WAIT_S)


def test_who_has_left_is_not_prepared_and_makes_room(prompts: LongPrompts) -> None:
    working = started(prompts, 20 * KIB)
    left, other = waiting(prompts, 20 * KIB), waiting(prompts, 20 * KIB)
    left.sink.is_abandoned = True
    newcomer = waiting(prompts, 20 * KIB)
    assert isinstance(left.sink.wait().error, RequestCancelled)
    for work in (working, other, newcomer):
        work.may_go_on.set()
        assert work.has_begun.wait(WAIT_S)
    assert not left.is_preparing.is_set()


def test_who_leaves_while_it_waits_or_is_prepared_does_not_begin(prompts: LongPrompts) -> None:
    working, next_one = started(prompts, 20 * KIB), waiting(prompts, 20 * KIB)
    working.sink.is_abandoned = next_one.sink.is_abandoned = True
    working.may_go_on.set()
    for work in (working, next_one):
        assert isinstance(work.sink.wait().error, RequestCancelled)
        assert not work.has_begun.is_set()
    assert not next_one.is_preparing.is_set()
    wait_until(lambda: prompts.num_waiting == 0)


def test_those_that_wait_when_new_ones_are_refused_begin_all_the_same(prompts: LongPrompts) -> None:
    working, next_one = started(prompts, 20 * KIB), waiting(prompts, 20 * KIB)
    prompts.refuse_new(DRAINING)
    with pytest.raises(Unavailable, match="shutting down"):
        prompts.take(tensors(20 * KIB), Work().prompt)
    assert prompts.num_waiting == 2
    for work in (working, next_one):
        work.may_go_on.set()
        assert work.has_begun.wait(WAIT_S)


def test_none_begins_once_all_are_cancelled(prompts: LongPrompts) -> None:
    working, next_one = started(prompts, 20 * KIB), waiting(prompts, 20 * KIB)
    prompts.cancel_all(DRAINING)
    assert next_one.sink.error is DRAINING
    working.may_go_on.set()
    assert working.sink.wait().error is DRAINING
    assert not working.has_begun.is_set()


def test_a_wrong_request_fails_alone_and_an_unexpected_error_is_told_without_its_traceback(
    prompts: LongPrompts, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse() -> None:
        raise RequestError("text_input is too long", field="text_input")

    def break_down() -> None:
        raise ZeroDivisionError("of ours")

    wrong, broken = Work(refuse), Work(break_down)
    for work in (wrong, broken):
        prompts.take(tensors(20 * KIB), work.prompt)
    assert isinstance(wrong.sink.wait().error, RequestError)
    error = broken.sink.wait().error
    assert type(error) is ServerError
    assert error.message == "unexpected error; the server's log has the traceback"
    assert "ZeroDivisionError" in caplog.text
    after = started(prompts, 20 * KIB)
    after.may_go_on.set()
    assert after.has_begun.wait(WAIT_S)
