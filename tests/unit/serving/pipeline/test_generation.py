# SPDX-License-Identifier: Apache-2.0
"""Requests in, replies out, with the real engine process: each request ends once, whatever happens to the others."""

import contextlib
import itertools
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import psutil
import pytest
import triton_python_backend_utils as pb_utils
from process_words import words_of
from recording_sink import RecordingSink
from simulated_release import DEMO_ENGINE, TOKENIZER, write_release

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engine_process import engine_client
from serving.engine_process.engine_sources import OwnedEngine
from serving.engines.seam.base import EngineStats, FinishReason, GenerationRequest
from serving.pipeline.generation import GenerationService
from serving.pipeline.request_origin import RequestOrigin
from serving.pipeline.running_request import Reply
from serving.requests.stream_state import StreamCheck, StreamContext, StreamState, new_stream_key, pack
from serving.telemetry.request_metrics import RequestMetrics
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError, ServerError, ServingError, Unavailable

pytestmark = pytest.mark.slow

SLOW = {"step_ms": 20.0}
ENDLESS = 2000  # tokens; 40 s when slow


class Bench:
    """A generation service with the records of its reports."""

    def __init__(self, folder: Path, engine: Mapping[str, object], **responses: Any) -> None:
        self.stats: list[EngineStats] = []
        self.on_stats: Callable[[EngineStats], None] = self.stats.append
        self.checks: list[StreamCheck] = []
        self.unread: Callable[[StreamCheck], Iterable[int]] = lambda _: []
        release_dir = write_release(folder, engine, **responses)
        self.metrics = RequestMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version="1")
        self.service = GenerationService(
            load_release(release_dir),
            OwnedEngine(release_dir),
            metrics=self.metrics,
            on_stats=lambda stats: self.on_stats(stats),  # noqa: PLW0108  a test may change it
            find_abandoned=self._count,
        )

    def _count(self, check: StreamCheck) -> Iterable[int]:
        self.checks.append(check)
        return self.unread(check)

    def start(self, request_id: str = "", **tensors: object) -> RecordingSink:
        """Send a request: two tokens in, three out, unless it says otherwise."""
        return self.start_into(RecordingSink(), request_id, **tensors)

    def start_into(self, sink: RecordingSink, request_id: str = "", **tensors: object) -> RecordingSink:
        """Send a request with a sink of the test's own."""
        self.service.start(request(**tensors), sink, RequestOrigin(request_id))
        return sink

    def start_endless(self, request_id: str = "", **tensors: object) -> RecordingSink:
        """Send a request that runs until it is stopped, and wait for its first token."""
        sink = self.start(request_id, **({"request_output_len": ENDLESS} | tensors))
        wait_until(lambda: bool(sink.replies))
        return sink

    @property
    def engine_pid(self) -> int:
        pid = self.service._engine.pid
        assert pid is not None
        return pid

    @property
    def num_errors(self) -> int:
        """Return the number of sequences that the metrics count as failed."""
        self.metrics.flush()
        return int(self.metrics._ends["error"].value())

    def kill_engine(self) -> None:
        with contextlib.suppress(ProcessLookupError):  # it is dead, and its successor is not there yet
            os.kill(self.engine_pid, signal.SIGKILL)


DTYPES = {
    bool: np.bool_,
    int: np.int32,
    float: np.float32,
}


def request(**tensors: object) -> dict[str, npt.NDArray[np.generic]]:
    """Return arrays in the form of Triton; scalars as ``[1]``."""
    values = {"input_ids": [20, 21], "request_output_len": 3, "streaming": True} | tensors
    return {name: _array(value) for name, value in values.items()}


def _array(value: object) -> npt.NDArray[np.generic]:
    if isinstance(value, np.ndarray):
        return value
    item = value
    while isinstance(item, list):
        item = item[0]
    return np.array([value], dtype=DTYPES[type(item)])


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.002)


Make = Callable[..., Bench]


@pytest.fixture(scope="module")
def echo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a small engine that repeats the prompt, shared by tests that leave it unchanged."""
    bench = Bench(tmp_path_factory.mktemp("echo"), {"mode": "echo", "num_kv_blocks": 8})
    yield bench
    assert bench.service.num_running == 0
    bench.service.close()


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield an engine with steps of 20 ms, shared by tests that leave it unchanged."""
    bench = Bench(tmp_path_factory.mktemp("slow"), SLOW)
    yield bench
    bench.service.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Yield `make(step_ms=5)`, which returns a service that a test may spoil."""
    benches: list[Bench] = []

    def start(*, responses: dict[str, object] | None = None, **engine: object) -> Bench:
        benches.append(Bench(tmp_path / str(len(benches)), engine, **(responses or {})))
        return benches[-1]

    yield start
    for bench in benches:
        bench.service.close()


@pytest.fixture(scope="module", autouse=True)
def nothing_is_left() -> Iterator[None]:
    threads, children = set(threading.enumerate()), set(psutil.Process().children())
    yield
    left = set(psutil.Process().children()) - children  # those of other files are not this one's
    assert [child for child in left if "serving.engine_process.engine_loop" in words_of(child)] == []
    wait_until(lambda: set(threading.enumerate()) <= threads)


# Replies.


def test_a_stream_is_its_tokens_one_reply_after_the_other(echo: Bench) -> None:
    sink = echo.start(request_output_len=5).wait()
    assert sink.token_ids == [20, 21, 20, 21, 20]
    assert [reply.is_final for reply in sink.replies] == [*[False] * (len(sink.replies) - 1), True]
    assert sink.replies[-1].finish_reason is None, "not asked for"


def test_a_whole_reply_has_the_prompt_first_unless_it_is_excluded(echo: Bench) -> None:
    [reply] = echo.start(streaming=False, return_num_output_tokens=True).wait().replies
    assert reply.token_ids == [20, 21, 20, 21, 20]
    assert reply.num_output_tokens == 3
    [reply] = echo.start(streaming=False, exclude_input_in_output=True).wait().replies
    assert reply.token_ids == [20, 21, 20]


def test_the_deployment_says_whether_the_prompt_is_excluded_by_default(make: Make) -> None:
    bench = make(mode="echo", responses={"exclude_input_in_output": True})
    assert bench.start(streaming=False).wait().token_ids == [20, 21, 20]
    assert bench.start(streaming=False, exclude_input_in_output=False).wait().token_ids == [20, 21, 20, 21, 20]


def test_what_is_asked_for_comes_with_the_replies(echo: Bench) -> None:
    names = ("return_num_input_tokens", "return_num_output_tokens", "return_finish_reason")
    asked: dict[str, object] = dict.fromkeys(names, True)
    replies = echo.start("", request_output_len=4, **asked).wait().replies
    assert {reply.num_input_tokens for reply in replies} == {2}
    assert sum(reply.num_output_tokens or 0 for reply in replies) == 4
    assert [reply.finish_reason for reply in replies] == [*[None] * (len(replies) - 1), FinishReason.LENGTH]


def test_the_end_token_ends_a_request(echo: Bench) -> None:
    sink = echo.start(request_output_len=50, end_id=21, return_finish_reason=True).wait()
    assert sink.token_ids == [20, 21]
    assert sink.replies[-1].finish_reason is FinishReason.STOP


def test_stop_words_in_token_ids_are_matched_on_the_text_they_stand_for(echo: Bench) -> None:
    words = [[98, 99, 21, 20], [1, 2, 4, -1]]  # three words: 98, 99, and 21 20
    sink = echo.start(request_output_len=50, stop_words_list=words, return_finish_reason=True).wait()
    assert sink.token_ids == [20, 21, 20]
    assert sink.replies[-1].finish_reason is FinishReason.STOP_STRING
    padded = [[98, 20, 21, 0], [1, -1, -1, -1]]  # what lies behind the last offset is nobody's
    assert len(echo.start(request_output_len=50, stop_words_list=padded).wait().token_ids) == 50


def test_stop_strings_come_with_the_context_of_an_ensemble(echo: Bench) -> None:
    tokenizer = PromptTokenizer.from_spec(TokenizerSpec(dir=TOKENIZER, add_special_tokens=False))
    prompt = tokenizer.encode("one two three four").tolist()
    context = pack(StreamContext(7, ("three",)))
    sink = echo.start(input_ids=prompt, request_output_len=50, stream_context=context).wait()
    assert len(sink.token_ids) <= len(prompt)
    states = [reply.stream_state for reply in sink.replies]
    assert all(isinstance(state, StreamState) and state.key == 7 for state in states)
    assert [state.stop_strings for state in states if state] == [("three",), *[()] * (len(states) - 1)]


def test_a_receiver_that_falls_behind_gets_fewer_and_larger_replies(make: Make) -> None:
    bench = make(mode="echo", step_ms=2.0)  # not all at once, however busy the machine
    first = threading.Event()

    def stumble_once(_: Reply) -> None:
        if not first.is_set():
            first.set()
            time.sleep(0.2)

    sink = bench.start_into(RecordingSink(before_send=stumble_once), request_output_len=60).wait()
    assert sink.token_ids == [20, 21] * 30
    assert len(sink.replies) < 50
    assert max(len(reply.token_ids) for reply in sink.replies) > 10


def test_stats_are_told_after_every_step_and_end_with_an_idle_engine(echo: Bench) -> None:
    echo.start(request_output_len=5).wait()
    wait_until(lambda: echo.stats[-1].num_used_kv_blocks == 0)
    assert echo.stats[-1].num_running == echo.stats[-1].num_waiting == 0


# Refusals.


def test_a_request_that_cannot_be_decoded_is_refused_at_once(echo: Bench) -> None:
    sink = RecordingSink()
    with pytest.raises(RequestError, match="max_tokens must be at least 1"):
        echo.start_into(sink, request_output_len=0)
    assert not sink.is_ended


def test_a_context_that_is_none_is_refused(echo: Bench) -> None:
    with pytest.raises(RequestError, match="stream_context is for the ensemble's own use"):
        echo.start(stream_context=np.array([[1, 2, 3]], dtype=np.uint8))


def test_what_the_engine_refuses_fails_with_the_engines_own_words(echo: Bench) -> None:
    error = echo.start(request_output_len=1000).wait().error
    assert error is not None
    assert error.code == "INVALID_ARG"
    assert str(error).startswith("[INVALID_ARG field=max_tokens value=1000")
    assert echo.service.num_running == 0
    assert echo.start().wait().error is None


def test_new_requests_are_refused_and_running_ones_go_on(make: Make) -> None:
    bench = make(**SLOW)
    running = bench.start(request_output_len=5)
    bench.service.refuse_new(Unavailable("going down", reason="draining"))
    with pytest.raises(Unavailable, match="reason=draining"):
        bench.start()
    assert bench.num_errors == 1
    assert len(running.wait().token_ids) == 5
    assert bench.service.num_running == 0


# Endings by others.


def test_cancel_all_fails_each_with_the_reason(slow: Bench) -> None:
    sinks = [slow.start_endless() for _ in range(3)]
    assert slow.service.num_running == 3
    slow.service.cancel_all(Unavailable("over", reason="shutdown"))
    assert [str(sink.wait().error) for sink in sinks] == ["[UNAVAILABLE reason=shutdown] over"] * 3
    assert slow.service.num_running == 0
    wait_until(lambda: slow.stats[-1].num_used_kv_blocks == 0)


def test_a_stop_request_ends_those_of_its_id_with_what_they_have(slow: Bench) -> None:
    [stopped, twin, other] = [slow.start_endless(name, return_finish_reason=True) for name in "aab"]
    stop = slow.start("a", stop=True)
    assert stop.replies == [Reply(token_ids=[], is_final=True)]
    for sink in (stopped, twin):
        assert sink.wait().error is None
        assert sink.replies[-1].finish_reason is FinishReason.CANCELLED
        assert sink.token_ids
    assert not other.is_ended
    slow.start("b", stop=True)
    other.wait()


def test_a_stopped_request_that_does_not_stream_gets_its_tokens_too(slow: Bench) -> None:
    sink = slow.start("a", request_output_len=ENDLESS, streaming=False, exclude_input_in_output=True)
    time.sleep(0.1)
    slow.start("a", stop=True)
    [reply] = sink.wait().replies
    assert 1 <= len(reply.token_ids) < 100


def test_a_stop_request_may_name_the_stream_instead(slow: Bench) -> None:
    stopped, other = (slow.start_endless(stream_context=pack(StreamContext(key))) for key in (1, 2))
    slow.start(stop=True, stream_context=pack(StreamContext(1)))
    stopped.wait()
    assert not other.is_ended
    slow.service.cancel_all(Unavailable("over"))
    other.wait()


def test_a_stop_request_that_names_nothing_is_refused_and_one_without_a_match_is_not(slow: Bench) -> None:
    with pytest.raises(RequestError, match="needs the request id"):
        slow.start(stop=True)
    assert slow.start("nobody", stop=True).is_ended


def test_a_direct_callers_request_ends_when_its_client_has_gone(slow: Bench) -> None:
    gone, other = slow.start_endless(), slow.start_endless()
    gone.is_abandoned = True
    error = gone.wait().error
    assert error is not None
    assert error.code == "CANCELLED"
    assert not other.is_ended
    other.is_abandoned = True
    other.wait()


def test_a_stream_of_an_ensemble_ends_when_the_check_says_that_nobody_reads_it(slow: Bench) -> None:
    read, unread = (slow.start_endless(stream_context=pack(StreamContext(key))) for key in (11, 12))
    slow.unread = lambda check: [key for key in check.num_chunks if key == 12]
    error = unread.wait().error
    assert error is not None
    assert error.code == "CANCELLED"
    assert not read.is_ended
    sent = [check.num_chunks[11] for check in slow.checks if 11 in check.num_chunks]
    assert sent == sorted(sent)
    assert sent[0] >= 1
    slow.unread = lambda check: list(check.num_chunks)
    read.wait()
    slow.unread = lambda _: []


def test_a_check_that_fails_is_taken_again_and_forgets_nobody(slow: Bench) -> None:
    sink = slow.start_endless(stream_context=pack(StreamContext(21)))

    def fail(_: StreamCheck) -> Iterable[int]:
        raise ServerError("no answer")

    slow.unread = fail
    slow.service.cancel_all(Unavailable("over"))
    sink.wait()
    before = len(slow.checks)
    wait_until(lambda: len(slow.checks) > before + 1)
    slow.unread = lambda _: []
    wait_until(lambda: slow.service._left._lost_streams == [])
    assert 21 in slow.checks[-1].lost_keys


def test_streams_that_ended_are_named_in_a_check_for_their_last_chunk_may_have_been_thrown_away(slow: Bench) -> None:
    # Triton drops what nobody reads, the last chunk too: postprocessing would keep the stream for ever.
    key = new_stream_key()
    slow.start(request_output_len=3, stream_context=pack(StreamContext(key))).wait()
    wait_until(lambda: any(key in check.lost_keys for check in slow.checks))


def test_a_stream_of_one_reply_is_in_no_check(slow: Bench) -> None:
    # Before its reply there is nothing that could have been thrown away, and with it everything is over.
    key = new_stream_key()
    bystander = slow.start_endless(stream_context=pack(StreamContext(new_stream_key())))
    slow.start(streaming=False, request_output_len=15, stream_context=pack(StreamContext(key))).wait()
    slow.start(request_output_len=1, stream_context=pack(StreamContext(key))).wait()
    num_checks = len(slow.checks)
    wait_until(lambda: len(slow.checks) > num_checks + 1)
    assert not any(key in check.lost_keys or key in check.num_chunks for check in slow.checks)
    slow.service.cancel_all(Unavailable("over"))
    bystander.wait()


def test_the_sinks_of_an_ensemble_are_not_asked_for_triton_would_never_tell_them(slow: Bench) -> None:
    def asked() -> None:
        raise AssertionError("asked")

    sink = RecordingSink(before_poll=asked)
    slow.start_into(sink, request_output_len=10, stream_context=pack(StreamContext(new_stream_key()))).wait()
    assert sink.error is None


def lose_engine(bench: Bench) -> None:
    pid = bench.engine_pid
    bench.kill_engine()
    wait_until(lambda: bench.engine_pid != pid and bench.service._engine._channel is not None)


def test_a_request_that_was_ended_before_the_engine_knew_it_does_not_run_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make(**SLOW)
    submit = bench.service._engine.submit
    endings: list[Callable[[], None]] = [
        lambda: bench.service.cancel_all(Unavailable("over")),
        lambda: lose_engine(bench),
    ]
    for end in endings:
        sink = RecordingSink()

        def submit_late(
            given: GenerationRequest,
            end: Callable[[], None] = end,
            sink: RecordingSink = sink,
            *,
            request_id: str,
        ) -> None:
            end()
            sink.wait()
            submit(given, request_id=request_id)

        monkeypatch.setattr(bench.service._engine, "submit", submit_late)
        bench.start_into(sink, request_output_len=ENDLESS)
        assert sink.error is not None
        time.sleep(0.1)
        wait_until(lambda: bench.stats[-1].num_running == 0, timeout_s=1)


def test_a_request_that_cannot_be_handed_over_is_the_callers_to_answer_and_nobody_elses(
    slow: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OverflowError("cannot be encoded")

    sink = RecordingSink()
    with monkeypatch.context() as patch:
        patch.setattr(slow.service._engine, "submit", fail)
        with pytest.raises(OverflowError):
            slow.start_into(sink)
    assert slow.service.num_running == 0
    slow.service.cancel_all(Unavailable("over"))
    time.sleep(0.1)
    assert not sink.is_ended


def test_a_request_that_was_refused_is_not_polled_behind_its_refusal(
    slow: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The watcher has listed both requests and asks the first; meanwhile the second is refused and answered.
    polls = threading.Semaphore(0)

    def take_long() -> None:
        polls.release()
        time.sleep(0.1)

    def refuse(*_: object, **__: object) -> None:
        for _round in range(2):  # the second round of the watcher has begun: its list has both
            assert polls.acquire(timeout=5)
        raise Unavailable("no engine")

    first, second = RecordingSink(before_poll=take_long), RecordingSink()
    slow.start_into(first, request_output_len=ENDLESS)
    with monkeypatch.context() as patch:
        patch.setattr(slow.service._engine, "submit", refuse)
        with pytest.raises(Unavailable):
            slow.start_into(second)
    second.fail(Unavailable("no engine"))  # as the adapter does
    first.is_abandoned = True
    first.wait()
    assert second.violations == []


# A sink that raises.


def broken_pipe(_: object) -> None:
    raise OSError("no shared memory")


def test_no_two_threads_are_in_a_sink_at_once_and_none_after_its_end(slow: Bench) -> None:
    # In Triton a poll for cancellation beside or behind the last response reads freed memory of the server.
    sending = RecordingSink(before_send=lambda _: time.sleep(0.1))  # the watcher polls every 40 ms
    polling = RecordingSink(before_poll=lambda: time.sleep(0.1))
    for sink in (sending, polling):
        slow.start_into(sink, request_output_len=4)
    for sink in (sending, polling):
        sink.wait()
        time.sleep(0.15)
        assert sink.violations == []


def test_a_sink_that_raises_is_told_once_more_and_does_not_stop_the_others(slow: Bench) -> None:
    broken, other = RecordingSink(before_send=broken_pipe), RecordingSink()
    slow.start_into(broken, request_output_len=ENDLESS)
    slow.start_into(other, request_output_len=5)
    error = broken.wait().error
    assert error is not None
    assert str(error).startswith("[INTERNAL]")
    assert "shared memory" not in str(error), "our own trouble is for the log"
    assert len(other.wait().token_ids) == 5
    wait_until(lambda: slow.stats[-1].num_running == 0)
    assert slow.service.num_running == 0


def test_a_last_reply_that_could_not_be_sent_is_followed_by_nothing(slow: Bench) -> None:
    def break_at_last(reply: Reply) -> None:
        if reply.is_final:
            broken_pipe(reply)

    sink = slow.start_into(RecordingSink(before_send=break_at_last))
    wait_until(lambda: slow.service.num_running == 0)
    time.sleep(0.1)
    assert sink.error is None, "the client may have had it"
    assert len(sink.replies) == 2


def test_a_stream_whose_sink_raised_is_forgotten_by_postprocessing(slow: Bench) -> None:
    key = new_stream_key()
    first: list[Reply] = []

    def break_at_second(reply: Reply) -> None:
        if first:
            broken_pipe(reply)
        first.append(reply)

    sink = RecordingSink(before_send=break_at_second)
    slow.start_into(sink, request_output_len=ENDLESS, stream_context=pack(StreamContext(key)))
    assert sink.wait().error is not None
    wait_until(lambda: any(key in check.lost_keys for check in slow.checks))


class DeafSink(RecordingSink):
    """A sink that raises at every call, also when asked for its client."""

    def send(self, reply: Reply) -> None:  # noqa: ARG002
        raise OSError("deaf")

    def fail(self, error: ServingError) -> None:  # noqa: ARG002
        raise OSError("deaf")

    def is_cancelled(self) -> bool:
        raise OSError("deaf")


def test_a_sink_that_cannot_say_whether_its_client_is_there_does_not_hide_the_others(slow: Bench) -> None:
    deaf = DeafSink()
    slow.start_into(deaf, request_output_len=ENDLESS, streaming=False)
    gone = slow.start_endless()
    gone.is_abandoned = True
    gone.wait(timeout_s=2)
    slow.service.cancel_all(Unavailable("over"))
    wait_until(lambda: slow.service.num_running == 0)


def test_stats_that_cannot_be_shown_do_not_stop_the_replies(echo: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: EngineStats) -> None:
        raise RuntimeError("no metrics")

    monkeypatch.setattr(echo, "on_stats", fail)
    assert echo.start().wait().token_ids == [20, 21, 20]
    assert echo.start().wait().token_ids == [20, 21, 20]


# The engine's death.


def is_served(bench: Bench) -> bool:
    try:
        return bench.start().wait().error is None
    except Unavailable:
        return False


class DumbSink(RecordingSink):
    """A sink that takes no error."""

    def fail(self, error: ServingError) -> None:  # noqa: ARG002
        raise OSError("dumb")


def test_an_engine_that_dies_again_and_again_fails_every_stream_once_and_is_restarted_each_time(make: Make) -> None:
    bench = make(**SLOW)
    for _ in range(2):
        bench.start_into(DumbSink(), request_output_len=ENDLESS, streaming=False)  # it must not keep the others waiting
        sinks = [bench.start_endless() for _ in range(5)]
        before = bench.engine_pid
        bench.kill_engine()
        for sink in sinks:
            error = sink.wait().error
            assert isinstance(error, Unavailable)
            assert error.facts == {"reason": "engine_died"}
        assert bench.service.num_running == 0
        wait_until(lambda: bench.stats[-1].num_running == bench.stats[-1].num_used_kv_blocks == 0)
        assert bench.stats[-1].num_kv_blocks == 2048, "a dead engine holds nothing"
        wait_until(lambda: is_served(bench))
        assert bench.engine_pid != before
        assert [violation for sink in sinks for violation in sink.violations] == []


def test_closing_ends_the_engine_and_its_watchers(make: Make) -> None:
    threads = set(threading.enumerate())
    bench = make(**SLOW)
    sink = bench.start_endless()
    pid = bench.engine_pid
    bench.service.close()
    assert not psutil.pid_exists(pid)
    wait_until(lambda: set(threading.enumerate()) <= threads)
    with pytest.raises(Unavailable):
        bench.start()
    assert not sink.is_ended


# All of it at once.


def storm(bench: Bench, *, num_requests: int, seed: int, num_kills: int) -> None:
    """Send requests from several threads, some abandoned, some stopped, some at once, and kill the engine in between.

    Each must end exactly once, and the good ones with exactly their tokens.
    """
    rng = random.Random(seed)
    sinks: list[tuple[RecordingSink, int]] = []
    refused = itertools.count()
    num_refused = 0
    threads = []

    def client(seed: int, count: int) -> None:
        nonlocal num_refused
        mine = random.Random(seed)
        for index in range(count):
            max_tokens = mine.randrange(1, 40)
            sink = RecordingSink()
            tensors: dict[str, object] = {"request_output_len": max_tokens, "streaming": mine.random() < 0.8}
            if mine.random() < 0.3:
                tensors["stream_context"] = pack(StreamContext(new_stream_key()))
            name = f"{seed}-{index}"
            try:
                bench.start_into(sink, name, exclude_input_in_output=True, **tensors)
            except Unavailable:
                num_refused = next(refused) + 1
                assert not sink.is_ended, "refused, and told to the sink"
                time.sleep(0.01)
                continue
            sinks.append((sink, max_tokens))
            fate = mine.random()
            if fate < 0.15:
                sink.is_abandoned = True
            elif fate < 0.3:
                bench.service.start(request(stop=True), RecordingSink(), RequestOrigin(name))
            if mine.random() < 0.1:
                time.sleep(mine.random() * 0.01)

    for number in range(4):
        threads.append(threading.Thread(target=client, args=(seed * 100 + number, num_requests // 4)))
        threads[-1].start()
    for _ in range(num_kills):
        time.sleep(0.02 + rng.random() * 0.5)
        bench.kill_engine()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    wait_until(lambda: is_served(bench))
    for sink, max_tokens in sinks:
        sink.wait()
        if sink.error is None:
            assert len(sink.token_ids) <= max_tokens
            assert sink.token_ids == [20, 21] * (len(sink.token_ids) // 2) + [20] * (len(sink.token_ids) % 2)
        else:
            assert sink.error.code in {"UNAVAILABLE", "CANCELLED"}
    assert [violation for sink, _ in sinks for violation in sink.violations] == []
    assert bench.service.num_running == 0
    wait_until(lambda: bench.stats[-1].num_used_kv_blocks == 0)
    wait_until(lambda: bench.service._left._lost_streams == [])
    assert len(sinks) + num_refused == num_requests


def test_each_of_200_requests_ends_once_although_some_are_cancelled_and_the_engine_is_killed(make: Make) -> None:
    storm(make(mode="echo", step_ms=1.0, max_num_seqs=16), num_requests=200, seed=1, num_kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20))
def test_each_of_5000_requests_ends_once_although_the_engine_dies_again_and_again(
    make: Make, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(engine_client, "_RESTART_DELAYS_S", (0.0,))
    storm(make(mode="echo", step_ms=1.0, max_num_seqs=64), num_requests=5000, seed=seed, num_kills=10)


# Several sequences for one request.


def tokens_by_sequence(sink: RecordingSink) -> dict[int | None, list[int]]:
    tokens: dict[int | None, list[int]] = {}
    for reply in sink.replies:
        tokens.setdefault(reply.sequence_index, []).extend(reply.token_ids)
    return tokens


@pytest.mark.parametrize("is_streaming", [True, False])
def test_each_sequence_is_what_its_own_seed_gives_alone(make: Make, is_streaming: bool) -> None:
    bench = make()
    how: dict[str, object] = {"runtime_top_p": 0.9, "request_output_len": 6, "exclude_input_in_output": True}
    seeds = [np.array([seed], dtype=np.uint64) for seed in (5, 6, 7)]
    alone = [bench.start("", seed=seed, **how).wait().token_ids for seed in seeds]
    sink = bench.start("", num_return_sequences=3, streaming=is_streaming, seed=seeds[0], **how).wait()
    assert tokens_by_sequence(sink) == dict(enumerate(alone))
    assert [reply.is_final for reply in sink.replies] == [*[False] * (len(sink.replies) - 1), True]
    assert len({tuple(tokens) for tokens in alone}) == 3
    assert sink.violations == []


def test_sequences_without_a_seed_differ(make: Make) -> None:
    tokens = tokens_by_sequence(make().start(num_return_sequences=4, runtime_top_p=0.9, streaming=False).wait())
    assert len({tuple(ids) for ids in tokens.values()}) == 4


def test_one_sequence_has_no_index(echo: Bench) -> None:
    assert set(tokens_by_sequence(echo.start(num_return_sequences=1).wait())) == {None}


def test_the_sequences_of_an_ensembles_request_are_streams_of_their_own(echo: Bench) -> None:
    context = StreamContext(new_stream_key(), ("x",))
    sink = echo.start(num_return_sequences=2, stream_context=pack(context)).wait()
    states = [reply.stream_state for reply in sink.replies]
    assert {state.key for state in states if state} == {context.key, context.key + 1}
    for index in (0, 1):
        own = [state for state in states if state and state.key == context.key + index]
        assert [state.is_final for state in own] == [*[False] * (len(own) - 1), True]
        assert [state.stop_strings for state in own] == [("x",), *[()] * (len(own) - 1)]


def test_a_client_that_goes_away_ends_all_sequences(slow: Bench) -> None:
    sink = slow.start_endless(num_return_sequences=3)
    sink.is_abandoned = True
    error = sink.wait().error
    assert error is not None
    assert error.code == "CANCELLED"
    wait_until(lambda: slow.service.num_running == 0)
    wait_until(lambda: slow.stats[-1].num_running == 0)
    assert sink.violations == []


def test_a_stop_request_ends_all_sequences_with_what_they_have(slow: Bench) -> None:
    sink = slow.start_endless("several", num_return_sequences=3, return_finish_reason=True)
    slow.start("several", stop=True).wait()
    reasons = [reply.finish_reason for reply in sink.wait().replies if reply.finish_reason]
    assert reasons == [FinishReason.CANCELLED] * 3
    assert sink.error is None
    assert sink.violations == []


def test_when_the_engine_dies_a_request_with_several_sequences_gets_one_error(make: Make) -> None:
    bench = make(**SLOW)
    sink = bench.start_endless(num_return_sequences=3)
    bench.kill_engine()
    error = sink.wait().error
    assert isinstance(error, Unavailable)
    wait_until(lambda: bench.service.num_running == 0)
    assert sink.violations == []


def test_a_request_with_several_sequences_that_finds_no_engine_gets_one_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "_RESTART_DELAYS_S", (60.0,))
    bench = make()
    lost = bench.start(request_output_len=ENDLESS)
    bench.kill_engine()
    lost.wait()
    sink = bench.start(num_return_sequences=3).wait()
    assert isinstance(sink.error, Unavailable)
    assert (sink.replies, sink.violations, bench.service.num_running) == ([], [], 0)
    for _ in range(20):
        with pytest.raises(Unavailable):
            bench.start()
    assert bench.num_errors == 1 + 3 + 20, "an outage is errors as long as it lasts"


def test_a_refusal_by_the_engine_is_told_once_and_stops_the_other_sequences(echo: Bench) -> None:
    sink = echo.start(request_output_len=200, num_return_sequences=3).wait()  # 8 blocks of 16 tokens
    assert sink.error is not None
    assert sink.error.code == "INVALID_ARG"
    wait_until(lambda: echo.service.num_running == 0)
    assert sink.violations == []


# Several prompts in one request.


def batch_of(*prompts: list[int], **tensors: object) -> dict[str, object]:
    """Return a request to the engine step for these prompts, padded with an id outside the vocabulary."""
    width = max(map(len, prompts))
    rows = {
        "input_ids": [[*prompt, *[-7] * (width - len(prompt))] for prompt in prompts],
        "input_lengths": [[len(prompt)] for prompt in prompts],
    }
    tensors = {"request_output_len": 6, "streaming": True} | tensors
    given: dict[str, object] = {name: np.array(value, dtype=np.int32) for name, value in rows.items()}
    for name, value in tensors.items():
        given[name] = np.array([[value]] * len(prompts), dtype=DTYPES[type(value)])
    return given


def tokens_of(replies: list[Reply]) -> list[int]:
    return [token_id for reply in replies for token_id in reply.token_ids]


PROMPTS = ([20, 21], [30, 31, 32, 33], [40])


@pytest.mark.parametrize("is_streaming", [True, False])
def test_each_prompt_of_a_batch_is_answered_as_if_it_were_alone(make: Make, is_streaming: bool) -> None:
    bench = make()
    how: dict[str, object] = {"request_output_len": 6, "streaming": is_streaming, "return_num_input_tokens": True}
    alone = [bench.start("", input_ids=prompt, **how).wait().replies for prompt in PROMPTS]
    sink = bench.start("", **batch_of(*PROMPTS, **how)).wait()
    for index, replies in enumerate(alone):
        own = [reply for reply in sink.replies if reply.batch_index == index]
        assert tokens_of(own) == tokens_of(replies)
        assert {reply.num_input_tokens for reply in own} == {len(PROMPTS[index])}
        assert is_streaming or len(own) == 1
    assert {reply.batch_index for reply in sink.replies} == {0, 1, 2}
    assert [reply.is_final for reply in sink.replies] == [*[False] * (len(sink.replies) - 1), True]
    assert sink.violations == []


def test_one_prompt_has_no_batch_index(echo: Bench) -> None:
    assert {reply.batch_index for reply in echo.start().wait().replies} == {None}


def test_a_client_that_goes_away_ends_all_prompts_of_its_batch(slow: Bench) -> None:
    sink = slow.start_endless("", **batch_of(*PROMPTS, request_output_len=ENDLESS))
    sink.is_abandoned = True
    error = sink.wait().error
    assert error is not None
    assert error.code == "CANCELLED"
    wait_until(lambda: slow.service.num_running == 0)
    wait_until(lambda: slow.stats[-1].num_running == 0)
    assert sink.violations == []


def test_an_abandoned_stream_of_an_ensembles_batch_ends_all_of_it(slow: Bench) -> None:
    contexts = [pack(StreamContext(new_stream_key())) for _ in PROMPTS]
    keys = [StreamContext(*msgspec.msgpack.decode(packed.tobytes())).key for packed in contexts]
    slow.unread = lambda check: [key for key in check.num_chunks if key == keys[1]]
    sink = slow.start_endless(
        "", **batch_of(*PROMPTS, request_output_len=ENDLESS), stream_context=np.concatenate(contexts)
    )
    error = sink.wait().error
    slow.unread = lambda _: []
    assert error is not None
    assert error.code == "CANCELLED"
    wait_until(lambda: slow.service.num_running == 0)
    wait_until(lambda: slow.stats[-1].num_running == 0)
    wait_until(lambda: set(keys) <= {key for check in slow.checks for key in check.lost_keys})
    assert sink.violations == []


def test_a_stop_request_ends_all_prompts_of_a_batch_with_what_they_have(slow: Bench) -> None:
    tensors = batch_of(*PROMPTS, request_output_len=ENDLESS, return_finish_reason=True)
    sink = slow.start_endless("batch", **tensors)
    slow.start("batch", **batch_of(*PROMPTS, stop=True)).wait()
    ends = {reply.batch_index: reply.finish_reason for reply in sink.wait().replies if reply.finish_reason}
    assert ends == dict.fromkeys(range(3), FinishReason.CANCELLED)
    assert sink.error is None
    assert sink.violations == []


def test_when_the_engine_dies_a_batch_gets_one_error(make: Make) -> None:
    bench = make(**SLOW)
    sink = bench.start_endless("", **batch_of(*PROMPTS, request_output_len=ENDLESS))
    bench.kill_engine()
    assert isinstance(sink.wait().error, Unavailable)
    wait_until(lambda: bench.service.num_running == 0)
    assert sink.violations == []


def test_a_prompt_that_the_engine_refuses_fails_its_batch_and_stops_the_others(echo: Bench) -> None:
    tensors = batch_of(*PROMPTS) | {"request_output_len": np.array([[6], [200], [6]], dtype=np.int32)}
    sink = echo.start("", **tensors).wait()
    assert sink.error is not None
    assert sink.error.code == "INVALID_ARG"
    wait_until(lambda: echo.service.num_running == 0)
    assert sink.violations == []


def test_a_batch_that_cannot_be_handed_over_fails_as_a_whole_and_once(
    slow: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = slow.service._engine.submit
    handed: list[int] = []

    def fail_at_third(given: GenerationRequest, *, request_id: str) -> None:
        if len(handed) == 2:
            raise OverflowError("cannot be encoded")
        handed.append(given.key)
        submit(given, request_id=request_id)

    with monkeypatch.context() as patch:
        patch.setattr(slow.service._engine, "submit", fail_at_third)
        sink = slow.start("", **batch_of(*PROMPTS, request_output_len=ENDLESS)).wait()
    assert sink.error is not None
    assert (sink.error.code, "OverflowError" in str(sink.error)) == ("INTERNAL", False)
    assert slow.service.num_running == 0
    wait_until(lambda: slow.stats[-1].num_running == 0)
    assert sink.violations == []


# What is told of the tokens and of the request.


def test_log_probabilities_come_with_their_tokens_and_add_up(tmp_path: Path) -> None:
    model = Bench(tmp_path, DEMO_ENGINE)
    replies = model.start(return_log_probs=True, request_output_len=4).wait().replies
    assert all(len(reply.log_probs or []) == len(reply.token_ids) for reply in replies)
    log_probs = [log_prob for reply in replies for log_prob in reply.log_probs or []]
    assert len(log_probs) == 4
    assert all(-20 < log_prob < 0 for log_prob in log_probs)
    assert replies[-1].cum_log_prob == pytest.approx(sum(log_probs))
    [whole] = model.start(return_log_probs=True, request_output_len=4, streaming=False).wait().replies
    assert whole.log_probs == log_probs
    assert len(whole.token_ids) == 6, "the prompt has no log probabilities"
    assert whole.cum_log_prob == pytest.approx(sum(log_probs))
    assert {reply.log_probs for reply in model.start().wait().replies} == {None}
    model.service.close()


ENDINGS: dict[str, dict[str, object]] = {
    "max_tokens": {"request_output_len": 20},
    "end token": {"request_output_len": 50, "end_id": 21, "min_tokens": 17},
    "stop string": {"request_output_len": 50, "stop_words_list": [[21], [1]], "min_tokens": 0},
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_last_reply_tells_when_what_happened_in_the_order_it_happened(echo: Bench, ending: str) -> None:
    before_ns = time.time_ns()
    replies = echo.start("", return_perf_metrics=True, **ENDINGS[ending]).wait().replies
    after_ns = time.time_ns()
    perf = replies[-1].perf
    assert perf is not None
    times = [perf.arrival_time_ns, perf.first_scheduled_time_ns, perf.first_token_time_ns, perf.last_token_time_ns]
    assert [before_ns, *times, after_ns] == sorted([before_ns, *times, after_ns])
    assert perf.kv_cache_reused_blocks == 0
    assert perf.kv_cache_alloc_total_blocks == perf.kv_cache_alloc_new_blocks == (1 if ending == "stop string" else 2)


def test_a_cancelled_request_tells_what_it_took(slow: Bench) -> None:
    sink = slow.start_endless("perf", return_perf_metrics=True)
    slow.start("perf", stop=True).wait()
    perf = sink.wait().replies[-1].perf
    assert perf is not None
    assert perf.first_token_time_ns <= perf.last_token_time_ns


def test_nobody_is_told_of_performance_who_did_not_ask(echo: Bench) -> None:
    assert {reply.perf for reply in echo.start().wait().replies} == {None}


def test_tokens_that_wait_leave_in_time_although_the_engine_stands_still(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {"step_ms": 5.0}, max_chunk_delay_ms=1000)
    sink = bench.start_endless()
    wait_until(lambda: bench.stats[-1].num_steps >= 3)
    os.kill(bench.engine_pid, signal.SIGSTOP)
    wait_until(lambda: len(sink.token_ids) == bench.stats[-1].num_steps)  # a step makes a token
    os.kill(bench.engine_pid, signal.SIGCONT)
    bench.service.close()


def test_each_reply_of_a_stream_tells_what_happened_up_to_it(slow: Bench) -> None:
    # Upstream's end-to-end client reads the measurements of every response, and ends where one has none.
    replies = slow.start("", streaming=True, request_output_len=6, return_perf_metrics=True).wait().replies
    perfs = [reply.perf for reply in replies]
    assert len(perfs) > 1
    assert None not in perfs
    last_ns = [perf.last_token_time_ns for perf in perfs if perf is not None]
    assert last_ns == sorted(last_ns)
    assert len({perf.first_token_time_ns for perf in perfs if perf is not None}) == 1
