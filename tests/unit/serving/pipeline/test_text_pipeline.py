# SPDX-License-Identifier: Apache-2.0
"""Text in, text out as a client of a real engine process: the new text in each response, or the whole text so far."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import triton_python_backend_utils as pb_utils
from recording_sink import RecordingSink
from recording_tensor_sink import RecordingTensorSink
from simulated_release import DEMO_ENGINE
from text_bench import Owner, ask, wait_until

from serving.engine_process.engine_sources import SharedEngine
from serving.pipeline.request_origin import RequestOrigin
from serving.pipeline.text_pipeline import TextPipeline
from serving.process.run_dir import RUN_DIR_VARIABLE
from serving.requests.tensor_sink import Tensors
from serving.telemetry.request_metrics import RequestMetrics
from serving.text.detokenization import TextDecoder
from trireme.base.errors import RequestError, Unavailable

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _folder_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path, step_ms=2.0)
    yield made
    made.close()


def pipeline(owner: Owner, *, is_accumulating: bool) -> TextPipeline:
    metrics = RequestMetrics(pb_utils.MetricFamily, model="tensorrt_llm_bls", version="1")
    return TextPipeline.from_release(owner.bls_folder, SharedEngine("1"), metrics, is_accumulating=is_accumulating)


@pytest.fixture
def delta(owner: Owner) -> Iterator[TextPipeline]:
    made = pipeline(owner, is_accumulating=False)
    yield made
    made.close()


@pytest.fixture
def accumulating(owner: Owner) -> Iterator[TextPipeline]:
    made = pipeline(owner, is_accumulating=True)
    yield made
    made.close()


def test_accumulated_responses_are_the_joins_of_the_deltas(delta: TextPipeline, accumulating: TextPipeline) -> None:
    whole = "".join(ask(delta.start, max_tokens=40).texts())
    texts = ask(accumulating.start, max_tokens=40).texts()
    assert len(texts) > 5
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))
    assert texts[-1] == whole
    assert ask(accumulating.start, max_tokens=40, stream=False).texts() == [whole]


def test_an_accumulated_text_shows_no_beginning_of_a_stop_string(
    delta: TextPipeline, accumulating: TextPipeline
) -> None:
    whole = "".join(ask(delta.start, max_tokens=40).texts())
    stop = whole[20:50]  # of several tokens
    texts = ask(accumulating.start, max_tokens=40, stop_words=stop).texts()
    cut = whole[: whole.index(stop)]
    assert texts[-1] == cut
    assert all(cut.startswith(text) for text in texts)


def test_each_sequence_of_a_request_accumulates_by_itself(accumulating: TextPipeline) -> None:
    sampled = {"top_p": 0.9, "max_tokens": 20}
    seeds = [np.array([[seed]], dtype=np.uint64) for seed in (7, 8)]
    alone = [ask(accumulating.start, seed=seed, **sampled).texts()[-1] for seed in seeds]
    sink = ask(accumulating.start, seed=seeds[0], num_return_sequences=2, **sampled).wait()
    last = {tensors["sequence_index"].item(): tensors["text_output"].item().decode() for tensors in sink.responses}
    assert [last[0], last[1]] == alone


def test_beams_are_whole_texts_whether_others_accumulate_or_not(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "model", **DEMO_ENGINE)
    texts = []
    for is_accumulating in (False, True):
        one = pipeline(owner, is_accumulating=is_accumulating)
        [response] = ask(one.start, max_tokens=20, stream=False, beam_width=3).wait().responses
        texts.append(response["text_output"].tolist())
        one.close()
    owner.close()
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 3


def answer_of(sink: RecordingTensorSink) -> tuple[str, list[int], int, int, str]:
    """Return text, token ids, both counts and the end of an answer whose counts and ids were asked for."""
    text = "".join(sink.texts())
    ids = [token_id for response in sink.responses for token_id in response["token_ids"].reshape(-1).tolist()]
    num_output = sum(response["num_output_tokens"].item() for response in sink.responses)
    last = sink.responses[-1]
    return text, ids, last["num_input_tokens"].item(), num_output, last["finish_reason"].item().decode()


RETURNED = ("return_token_ids", "return_num_input_tokens", "return_num_output_tokens", "return_finish_reason")


@pytest.mark.parametrize("is_streaming", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("more", [{}, {"top_p": 0.9, "min_tokens": 25}, {"stop_words": "STOP"}], ids=str)
def test_an_answer_goes_on_from_any_token_as_if_it_had_never_stopped(
    delta: TextPipeline, more: dict[str, object], *, is_streaming: bool
) -> None:
    asked: dict[str, object] = {"max_tokens": 30, "stream": is_streaming, **dict.fromkeys(RETURNED, True), **more}
    if "top_p" in more:
        asked["seed"] = np.array([[7]], dtype=np.uint64)  # the simulated engine's draws do not begin anew
    if "stop_words" in more:
        whole = "".join(ask(delta.start, max_tokens=30).texts())
        asked["stop_words"] = whole[40:48]  # it may begin in one part, and end in the other
    undisturbed = answer_of(ask(delta.start, **asked))
    ids = undisturbed[1]
    assert len(ids) > 10
    for num_known in range(1, len(ids)):
        known = np.array([ids[:num_known]], dtype=np.int32)
        assert answer_of(ask(delta.start, **asked, continued_ids=known)) == undisturbed


@pytest.mark.parametrize("name", ["image_input", "image_bytes_input", "image_url_input", "video_bytes_input"])
def test_pictures_are_refused_by_name_with_the_reason(delta: TextPipeline, name: str) -> None:
    array = np.array([[b"http://x"]], dtype=np.object_) if "url" in name else np.zeros((1, 1, 3, 2, 2), dtype=np.uint8)
    with pytest.raises(
        RequestError, match=rf"field={name} .*{name} is not supported by the provider 'simulated'; .*text"
    ):
        ask(delta.start, **{name: array})


def test_a_stop_request_at_the_owner_ends_the_guests_request_of_that_id(owner: Owner, delta: TextPipeline) -> None:
    asked = {"max_tokens": 1500, "return_finish_reason": True}
    named = ask(delta.start, "a", **asked)
    other = ask(delta.start, "b", **(asked | {"max_tokens": 60}))
    wait_until(lambda: bool(named.responses and other.responses))
    stop = {"input_ids": np.array([[1]]), "stop": np.array([[True]])}
    owner.service.start(stop, RecordingSink(), RequestOrigin("a"))
    assert named.texts()[0]
    assert named.responses[-1]["finish_reason"].item() == b"cancelled"
    other.texts()
    assert other.responses[-1]["finish_reason"].item() == b"length"
    assert delta.num_running == 0


def test_a_pipeline_is_warmed_up_without_a_word_to_its_engine_or_its_counters(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[list[int]] = []
    decode = TextDecoder.decode

    def note(decoder: TextDecoder, token_ids: list[int]) -> str:
        decoded.append(list(token_ids))
        return decode(decoder, token_ids)

    monkeypatch.setattr(TextDecoder, "decode", note)
    metrics = RequestMetrics(pb_utils.MetricFamily, model="tensorrt_llm_bls", version="1")
    made = TextPipeline.from_release(owner.bls_folder, SharedEngine("1"), metrics)
    try:
        prompts = [ids for ids in decoded if 1 < len(ids) < 64]  # beside the whole vocabulary, which is checked at load
        assert len(prompts) == 1, "it was tokenized, read as a request, and decoded"
        assert made.num_running == 0
        assert not metrics._counted
        assert not metrics._observed
    finally:
        made.close()


LONG = "Who are you? " * 2000


def test_a_request_with_long_text_counts_as_running_from_the_start_and_is_answered(delta: TextPipeline) -> None:
    held, may_go_on = threading.Event(), threading.Event()
    prepare = delta._prompt_step.prepare

    def slowly(tensors: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        held.set()
        assert may_go_on.wait(10)
        return prepare({**tensors, "QUERY": np.array([[b"Who are you?"]], dtype=np.object_)})

    delta._prompt_step.prepare = slowly  # type: ignore[method-assign,assignment]
    taken = ask(delta.start, text_input=LONG)
    assert held.wait(10)
    assert delta.num_running == 1
    delta.refuse_new(Unavailable("the server is shutting down", reason="draining"))
    with pytest.raises(Unavailable, match="shutting down"):
        ask(delta.start, text_input=LONG)
    may_go_on.set()
    assert taken.texts()  # it was taken before
    wait_until(lambda: delta.num_running == 0)


def test_long_text_that_cannot_fit_is_refused_through_its_sink(delta: TextPipeline) -> None:
    assert isinstance(ask(delta.start, text_input=LONG).wait().error, RequestError)
    wait_until(lambda: delta.num_running == 0)


def test_long_text_that_waits_is_ended_with_all_others(delta: TextPipeline) -> None:
    held, may_go_on = threading.Event(), threading.Event()

    def slowly(_: Tensors) -> dict[str, npt.NDArray[np.generic]]:
        held.set()
        assert may_go_on.wait(10)
        return {}

    delta._prompt_step.prepare = slowly  # type: ignore[method-assign,assignment]
    waiting = ask(delta.start, text_input=LONG)
    assert held.wait(10)
    shutdown = Unavailable("the server shut down", reason="shutdown")
    delta.cancel_all(shutdown)
    may_go_on.set()
    assert waiting.wait().error is shutdown
