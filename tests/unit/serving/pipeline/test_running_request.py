# SPDX-License-Identifier: Apache-2.0
"""The contract's replies from the engine's chunks, streaming and whole, and the calls that a sink may still get."""

from collections.abc import Callable

import pytest
import triton_python_backend_utils as pb_utils
from recording_sink import RecordingSink

from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.pipeline.running_request import Reply, RunningRequest
from serving.requests.engine_request import ResponseOptions
from serving.requests.stream_state import StreamContext, StreamState
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_observer import UNTRACED, SequenceObserver
from trireme.base.errors import ServerError

LENGTH = FinishReason.LENGTH
PROMPT = [1, 2, 3]


def observer() -> SequenceObserver:
    metrics = RequestMetrics(pb_utils.MetricFamily, model="tensorrt_llm", version="1")
    return UNTRACED.begin_sequence(metrics, num_prompt_tokens=3, kv_block_tokens=16)


def running(*, context: StreamContext | None = None, is_prompt_echoed: bool = False, **options: bool) -> RunningRequest:
    given = ResponseOptions(input_ids=PROMPT, **options)  # type: ignore[arg-type]
    return RunningRequest(RecordingSink(), "id", given, context, is_prompt_echoed, observer())


def replies(request: RunningRequest, *chunks: TokenChunk) -> list[Reply]:
    """Return the replies to chunks, each made when the previous reply has been sent, as the service does."""
    made = []
    for chunk in chunks:
        reply = request.reply_to(chunk)
        if reply is not None:
            request.send(reply)
            made.append(reply)
    return made


def test_a_stream_has_a_reply_for_each_chunk() -> None:
    made = replies(
        running(is_streaming=True), TokenChunk(7, [10]), TokenChunk(7, [11, 12]), TokenChunk(7, [13], LENGTH)
    )
    assert made == [
        Reply(token_ids=[10], is_final=False),
        Reply(token_ids=[11, 12], is_final=False),
        Reply(token_ids=[13], is_final=True),
    ]


def test_a_whole_response_is_one_reply_with_all_tokens() -> None:
    made = replies(running(), TokenChunk(7, [10]), TokenChunk(7, [11, 12]), TokenChunk(7, [13], LENGTH))
    assert made == [Reply(token_ids=[10, 11, 12, 13], is_final=True)]


def test_only_a_whole_response_can_have_the_prompt() -> None:
    chunks = [TokenChunk(7, [10]), TokenChunk(7, [11], LENGTH)]
    assert replies(running(is_prompt_echoed=True), *chunks)[0].token_ids == [1, 2, 3, 10, 11]
    assert replies(running(is_prompt_echoed=True, is_streaming=True), *chunks)[0].token_ids == [10]


@pytest.mark.parametrize("is_streaming", [True, False])
def test_counts_are_of_the_prompt_and_of_what_was_generated_in_this_reply(is_streaming: bool) -> None:
    request = running(
        is_streaming=is_streaming, is_prompt_echoed=True, return_num_input_tokens=True, return_num_output_tokens=True
    )
    made = replies(request, TokenChunk(7, [10, 11]), TokenChunk(7, [12], LENGTH))
    assert [reply.num_input_tokens for reply in made] == [3] * len(made)
    assert [reply.num_output_tokens for reply in made] == ([2, 1] if is_streaming else [3])


def test_the_reason_comes_with_the_last_reply_alone() -> None:
    made = replies(
        running(is_streaming=True, return_finish_reason=True), TokenChunk(7, [10]), TokenChunk(7, [], FinishReason.STOP)
    )
    assert [reply.finish_reason for reply in made] == [None, FinishReason.STOP]


def test_the_release_comes_with_the_first_reply_and_the_cached_tokens_with_the_last() -> None:
    request = running(is_streaming=True, return_release=True, return_num_cached_tokens=True)
    request.release, request.kv_block_tokens = 7, 2
    perf = PerfMetrics(1, 2, 3, 4, kv_cache_reused_blocks=1)
    made = replies(
        request, TokenChunk(7, [10], perf=perf), TokenChunk(7, [11], perf=perf), TokenChunk(7, [12], LENGTH, perf=perf)
    )
    assert [reply.release for reply in made] == [7, None, None]
    assert [reply.num_cached_tokens for reply in made] == [None, None, 2]


@pytest.mark.parametrize(
    ("perf", "cached"),
    [(None, None), (PerfMetrics(1, 2, 3, 4), None), (PerfMetrics(1, 2, 3, 4, kv_cache_reused_blocks=9), len(PROMPT))],
)
def test_no_more_tokens_were_cached_than_the_prompt_has_and_none_are_told_that_nobody_knows(
    perf: PerfMetrics | None, cached: int | None
) -> None:
    request = running(return_num_cached_tokens=True)
    request.kv_block_tokens = 2
    [reply] = replies(request, TokenChunk(7, [10], LENGTH, perf=perf))
    assert reply.num_cached_tokens == cached


def test_a_cancelled_request_ends_with_what_it_has() -> None:
    made = replies(running(), TokenChunk(7, [10]), TokenChunk(7, [], FinishReason.CANCELLED))
    assert made == [Reply(token_ids=[10], is_final=True)]


def test_the_state_of_a_stream_of_the_ensemble_goes_with_each_reply_and_its_stop_strings_with_the_first() -> None:
    context = StreamContext(99, ("stop",))
    made = replies(running(context=context, is_streaming=True), TokenChunk(7, [10]), TokenChunk(7, [11], LENGTH))
    assert [reply.stream_state for reply in made] == [
        StreamState(99, False, stop_strings=("stop",)),
        StreamState(99, True),
    ]


def test_the_state_says_how_many_tokens_are_the_prompt() -> None:
    [reply] = replies(running(context=StreamContext(99), is_prompt_echoed=True), TokenChunk(7, [10], LENGTH))
    assert reply.stream_state == StreamState(99, True, 3)
    [reply] = replies(running(context=StreamContext(99)), TokenChunk(7, [10], LENGTH))
    assert reply.stream_state == StreamState(99, True, 0)


def test_it_knows_its_stream_by_the_name_that_preprocessing_gave() -> None:
    assert running(context=StreamContext(99)).is_stream(99)
    assert not running(context=StreamContext(99)).is_stream(98)
    assert not running().is_stream(99)


ENDINGS: dict[str, Callable[[RunningRequest], None]] = {
    "final reply": lambda request: request.send(Reply(token_ids=[], is_final=True)),
    "error": lambda request: request.fail(ServerError("over")),
    "somebody else's": lambda request: request.disown(),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_sink_is_asked_for_cancellation_until_its_last_call_and_not_behind_it(ending: str) -> None:
    request = running(is_streaming=True)
    sink = request.sink
    assert isinstance(sink, RecordingSink)
    sink.is_abandoned = True
    request.send(Reply(token_ids=[1], is_final=False))
    assert request.is_cancelled()
    assert not request.is_over
    ENDINGS[ending](request)
    assert not request.is_cancelled()
    assert request.is_over
    assert sink.violations == []


def test_a_reply_that_could_not_be_sent_is_not_counted() -> None:
    def fail(_: Reply) -> None:
        raise OSError("no room")

    request = RunningRequest(RecordingSink(before_send=fail), "", ResponseOptions(), None, False, observer())
    with pytest.raises(OSError, match="no room"):
        request.send(Reply(token_ids=[1], is_final=False))
    assert request.num_replies == 0
    assert not request.is_over
    with pytest.raises(OSError, match="no room"):
        request.send(Reply(token_ids=[1], is_final=True))
    assert request.is_over, "the sink may have had it"


def test_a_request_that_was_stopped_before_it_began_has_measured_nothing() -> None:
    [reply] = replies(running(return_perf_metrics=True), TokenChunk(7, [], FinishReason.CANCELLED))
    assert reply.perf is not None
    assert reply.perf.arrival_time_ns > 0
    assert (reply.perf.first_token_time_ns, reply.perf.kv_cache_alloc_total_blocks) == (0, 0)
    [unmeasured] = replies(running(return_perf_metrics=True), TokenChunk(7, [10], LENGTH))
    assert unmeasured.perf is None, "an engine that says nothing is not taken for one that did nothing"
