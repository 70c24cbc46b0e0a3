# SPDX-License-Identifier: Apache-2.0
"""A request of several prompts: every row is what it is alone, however the tokens of all of them arrive."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils
from hypothesis import given
from hypothesis import strategies as st
from recording_tensor_sink import RecordingTensorSink
from simulated_release import write_release
from telling_engine import TellingEngine

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engine_process.stopping_engine import StoppingEngine
from serving.engines.seam.base import TokenChunk
from serving.engines.seam.clock import VirtualClock
from serving.pipeline.prompt_step import PromptStep
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.request_sequences import RequestSequences
from serving.pipeline.response_coalescing import ResponseCoalescer
from serving.pipeline.running_request import ReplySink
from serving.pipeline.text_pipeline import TextPipeline
from serving.requests.prompt_batch import Row, engine_rows, for_each_row, rows_of
from serving.requests.stream_state import KEYS_PER_REQUEST
from serving.requests.tensor_sink import Tensors
from serving.telemetry.request_metrics import RequestMetrics
from serving.text.detokenization import TextDecoder
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import RequestError

# Rows


def ints(*rows: list[int]) -> Any:
    return np.array(rows, dtype=np.int32)


def test_one_prompt_is_the_request_itself_and_nothing_is_copied() -> None:
    request = {"input_ids": ints([1, 2]), "input_lengths": np.array([2]), "temperature": np.array(0.5)}
    [row] = engine_rows(request)
    assert row is request


def test_a_row_is_a_view_of_the_requests_tensors() -> None:
    request = {"QUERY": np.array([[b"a"], [b"b"]], dtype=np.object_), "REQUEST_OUTPUT_LEN": ints([3], [4])}
    first, second = rows_of(request)
    assert [row["QUERY"].tolist() for row in (first, second)] == [[[b"a"]], [[b"b"]]]
    assert second["REQUEST_OUTPUT_LEN"].tolist() == [[4]]
    assert second["REQUEST_OUTPUT_LEN"].base is request["REQUEST_OUTPUT_LEN"]


@pytest.mark.parametrize(
    ("request_", "token"),
    [
        ({"QUERY": ints([1], [2]), "REQUEST_OUTPUT_LEN": ints([3])}, "field=max_tokens value=1"),
        ({"input_ids": ints([1]), "streaming": ints([1], [1], [1])}, "field=streaming value=3"),
        ({"streaming": ints([1], [1]), "input_ids": ints([1], [2]), "x": np.array(3)}, "field=x value=1"),
        ({"input_ids": np.zeros((0, 1)), "streaming": np.zeros((0, 1))}, "field=input_ids value=0 max=128"),
        ({"QUERY": np.zeros((129, 1))}, "field=text_input value=129 max=128"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name(request_: Row, token: str) -> None:
    with pytest.raises(RequestError, match=rf"^\[INVALID_ARG {token}\]"):
        rows_of(request_)


def test_as_many_prompts_as_a_request_may_have_streams_are_taken() -> None:
    assert len(rows_of({"input_ids": np.zeros((KEYS_PER_REQUEST, 2))})) == KEYS_PER_REQUEST


def test_what_is_wrong_with_a_row_says_which_one_and_of_a_single_prompt_does_not() -> None:
    def work(row: Row) -> int:
        if row["x"].item() > 1:
            raise RequestError("too much", field="x", value=row["x"].item())
        return int(row["x"].item())

    rows = [{"x": np.array([value])} for value in (1, 0, 2)]
    assert for_each_row(work, rows[:2]) == [1, 0]
    with pytest.raises(RequestError, match=r"^\[INVALID_ARG field=x value=2 batch_index=2\] too much$"):
        for_each_row(work, rows)
    with pytest.raises(RequestError, match=r"^\[INVALID_ARG field=x value=2\] too much$"):
        for_each_row(work, rows[2:])


# Padding


def test_a_row_has_its_ids_without_their_padding() -> None:
    rows = engine_rows(
        {
            "input_ids": ints([5, 6, 7], [8, 0, 0]),
            "input_lengths": ints([3], [1]),
            "prompt_table_extra_ids": ints([1, 1, 1], [2, 0, 0]),
            "decoder_input_ids": ints([0, 0], [9, 0]),
            "decoder_input_lengths": ints([0], [1]),
        }
    )
    assert [row["input_ids"].tolist() for row in rows] == [[[5, 6, 7]], [[8]]]
    assert [row["prompt_table_extra_ids"].tolist() for row in rows] == [[[1, 1, 1]], [[2]]]
    assert "decoder_input_ids" not in rows[0]
    assert "decoder_input_lengths" not in rows[0]
    assert rows[1]["decoder_input_ids"].tolist() == [[9]]


def test_ids_without_lengths_all_count() -> None:
    assert [row["input_ids"].tolist() for row in engine_rows({"input_ids": ints([5, 6], [7, 8])})] == [
        [[5, 6]],
        [[7, 8]],
    ]


@pytest.mark.parametrize(("name", "length"), [("input", 0), ("input", 4), ("input", -1), ("decoder_input", 4)])
def test_a_length_beyond_the_ids_is_refused_with_its_row(name: str, length: int) -> None:
    request = {f"{name}_ids": ints([5, 6, 7], [8, 0, 0]), f"{name}_lengths": ints([3], [length])}
    with pytest.raises(RequestError, match=rf"field={name}_lengths value={length} batch_index=1\] .* to 3, the width"):
        engine_rows(request)


# From text to text, on an engine in this process whose chunks come in any grouping


class AnyOrderService:
    """A `GenerationService` that gets the chunks of all sequences in an order and grouping drawn from `rng`."""

    def __init__(self, folder: Path) -> None:
        release = load_release(folder)
        self.decoder = TextDecoder.from_spec(release.tokenizer)
        spec = SimulatedEngineSpec.model_validate({"provider": "simulated", "step_ms": 0.0, "num_kv_blocks": 512})
        self._engine = StoppingEngine(TellingEngine(spec, VirtualClock()), self.decoder)
        metrics = RequestMetrics(pb_utils.MetricFamily, model="ensemble", version="1")
        self._asked = RequestSequences(release, self.decoder, self._engine.info, metrics)
        self.prompt_step = PromptStep(PromptTokenizer.from_spec(release.tokenizer))
        self.rng = random.Random(0)

    def start(
        self, tensors: Tensors, sink: ReplySink, origin: RequestOrigin = NO_ORIGIN, *, was_taken: bool = False
    ) -> None:
        assert not was_taken
        assert origin == NO_ORIGIN
        prompts = self._asked.prompts(tensors)
        sequences, _ = self._asked.sequences(prompts, sink, origin, on_failure=lambda _: None)
        running = {request.key: one for request, one in sequences}
        made: dict[int, list[TokenChunk]] = {key: [] for key in running}
        for request, _ in sequences:
            self._engine.add(request)
        while self._engine.has_work:
            for chunk in self._engine.step():
                made[chunk.key].append(chunk)
        while made:
            key = self.rng.choice(list(made))
            count = self.rng.randrange(1, 6)
            [chunk] = ResponseCoalescer(lambda: 0.0).due(made[key][:count])
            del made[key][:count]
            reply = running[key].reply_to(chunk)
            if reply is not None:
                running[key].send(reply)
            if not made[key]:
                del made[key]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> AnyOrderService:
    return AnyOrderService(write_release(tmp_path_factory.mktemp("any order")))


@pytest.fixture(scope="module", params=[False, True], ids=["deltas", "accumulated"])
def pipeline(service: AnyOrderService, request: pytest.FixtureRequest) -> TextPipeline:
    return TextPipeline(cast(Any, service), service.prompt_step, service.decoder, is_accumulating=request.param)


DTYPES = {str: np.object_, bool: np.bool_, int: np.int32, float: np.float32}
NOT_TOLD = ("batch_index", "sequence_index")
# All about one sequence: how many responses, and what each tensor of them holds in turn; deltas joined.
Told = dict[tuple[int, int | None], SimpleNamespace]


def together(rows: list[dict[str, Any]]) -> Tensors:
    """Return rows of values as a request's tensors."""
    tensors: dict[str, Any] = {}
    for name, value in rows[0].items():
        values = [[row[name].encode() if isinstance(value, str) else row[name]] for row in rows]
        tensors[name] = np.array(values, dtype=np.uint64 if name == "seed" else DTYPES[type(value)])
    return tensors


def answer(pipeline: TextPipeline, rows: list[dict[str, Any]]) -> Told:
    """Return the answer of each sequence, by its batch index (0 where there is none) and its sequence index."""
    sink = RecordingTensorSink()
    pipeline.start(together(rows), sink)
    assert sink.wait().error is None
    is_accumulating = pipeline.is_accumulating
    told: Told = {}
    for response in sink.responses:
        assert ("batch_index" in response) == (len(rows) > 1)
        batch_index = response["batch_index"] if "batch_index" in response else ints([0])
        assert batch_index.shape == (1, 1)
        sequence = int(response["sequence_index"].item()) if "sequence_index" in response else None
        one = told.setdefault(
            (int(batch_index.item()), sequence), SimpleNamespace(text=b"", num_tokens=0, log_probs=[])
        )
        text = response["text_output"].item()
        one.text = text if is_accumulating else one.text + text
        one.num_tokens += response["num_output_tokens"].item()
        one.num_input_tokens = response["num_input_tokens"].item()
        one.log_probs += response["output_log_probs"].reshape(-1).tolist()
        if "finish_reason" in response:
            assert not hasattr(one, "finish_reason"), "a sequence ends once"
            one.finish_reason = response["finish_reason"].item()
    return told


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "text_input": st.sampled_from(["Who?", "hello there", "法国 is", "a b c d e f g h", "x"]),
            "max_tokens": st.integers(1, 25),
            "stream": st.booleans(),
            "exclude_input_in_output": st.booleans(),
            "stop_words": st.sampled_from(["", "e", " t", "an", "zzz"]),
            "seed": st.integers(0, 3),
            "top_p": st.sampled_from([0.0, 0.9]),
            "num_return_sequences": st.integers(1, 3),
            "return_num_input_tokens": st.just(True),
            "return_num_output_tokens": st.just(True),
            "return_finish_reason": st.just(True),
            "return_log_probs": st.just(True),
        }
    ),
    min_size=1,
    max_size=4,
)


@given(rows=ROWS, rng=st.randoms(use_true_random=True))
def test_each_row_of_any_batch_is_what_it_is_alone_in_whatever_grouping_its_tokens_come(
    pipeline: TextPipeline, service: AnyOrderService, rows: list[dict[str, Any]], rng: random.Random
) -> None:
    service.rng = rng
    told = answer(pipeline, rows)
    expected: Told = {}
    for batch_index, row in enumerate(rows):
        expected |= {(batch_index, sequence): one for (_, sequence), one in answer(pipeline, [row]).items()}
    assert told == expected


PLAIN = {"text_input": "Who?", "max_tokens": 8, "stream": True, "num_return_sequences": 1}


def test_a_response_that_is_not_streamed_is_whole_for_each_prompt_and_the_last_of_all_ends_the_request(
    service: AnyOrderService,
) -> None:
    pipeline = TextPipeline(cast(Any, service), service.prompt_step, service.decoder)
    ends: list[bool] = []

    class Sink(RecordingTensorSink):
        def send(self, tensors: Tensors, *, is_final: bool) -> None:
            ends.append(is_final)
            super().send(tensors, is_final=is_final)

    sink = Sink()
    pipeline.start(together([PLAIN | {"stream": False}] * 3), sink)
    assert {response["batch_index"].item() for response in sink.wait().responses} == {0, 1, 2}
    assert ends == [False, False, True]


def test_what_is_asked_beside_the_text_is_each_prompts_own(service: AnyOrderService) -> None:
    pipeline = TextPipeline(cast(Any, service), service.prompt_step, service.decoder)
    asked = ("return_context_logits", "return_generation_logits", "return_log_probs", "return_perf_metrics")
    asks: dict[str, Any] = {"stream": False, "max_tokens": 4, **dict.fromkeys(asked, True)}
    texts = zip(("Who?", "hello there", "x"), (1, 3, 2), strict=True)
    rows = [{"text_input": text, "beam_width": beam_width, **asks} for text, beam_width in texts]
    sink = RecordingTensorSink()
    pipeline.start(together(rows), sink)
    for response in sink.wait().responses:
        index = response["batch_index"].item()
        alone_sink = RecordingTensorSink()
        pipeline.start(together([rows[index]]), alone_sink)
        [alone] = alone_sink.wait().responses
        assert set(response) == {*alone, "batch_index"}
        assert response["text_output"].shape == (rows[index]["beam_width"],)
        for name in ("text_output", "context_logits", "generation_logits", "output_log_probs", "cum_log_probs"):
            assert response[name].tolist() == alone[name].tolist()
    assert len(sink.responses) == 3


def test_prompts_and_sequences_together_have_a_limit(service: AnyOrderService) -> None:
    pipeline = TextPipeline(cast(Any, service), service.prompt_step, service.decoder)
    rows = [PLAIN | {"max_tokens": 1, "num_return_sequences": 64}] * 2
    sink = RecordingTensorSink()
    pipeline.start(together(rows), sink)
    assert len(sink.wait().responses) == KEYS_PER_REQUEST
    with pytest.raises(RequestError, match=r"\[INVALID_ARG field=num_return_sequences value=129 max=128\]"):
        pipeline.start(together([*rows, PLAIN]), sink)


def test_a_bad_row_is_named_and_nothing_is_generated_for_the_others(
    service: AnyOrderService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service._engine, "add", lambda _: pytest.fail("something was generated"))
    pipeline = TextPipeline(cast(Any, service), service.prompt_step, service.decoder)
    sink = RecordingTensorSink()
    good = PLAIN | {"temperature": 0.5, "stop_words": ""}
    for bad, token in (
        ({"temperature": -1.0}, "field=temperature value=-1.0"),
        ({"text_input": ""}, "field=text_input"),
        ({"stop_words": "x" * 1001}, "field=stop_words .*"),
        ({"max_tokens": 0}, "field=max_tokens value=0"),
    ):
        with pytest.raises(RequestError, match=rf"^\[INVALID_ARG {token} ?batch_index=1\]"):
            pipeline.start(together([good, good | bad, good]), sink)
    assert sink.responses == []


def test_stop_is_for_the_whole_request(service: AnyOrderService) -> None:
    tensors = {"input_ids": ints([1], [2]), "request_output_len": ints([3], [3]), "stop": np.array([[True], [False]])}
    with pytest.raises(RequestError, match=r"field=stop\] stop is for the whole request"):
        service._asked.prompts(tensors)
