# SPDX-License-Identifier: Apache-2.0
"""Text in, text out through the three adapters' `model.py`, on the fake stub: packing, errors, cancellation."""

import gc
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest
import triton_python_backend_utils as pb_utils
from ensemble_by_hand import AdapterError, EnsembleByHand, load_adapter
from process_words import words_of
from simulated_release import write_release

from ensemble_configs.render.repository import DEFAULT_REPOSITORY
from ensemble_configs.spec.model_names import PYTHON_MODELS

pytestmark = pytest.mark.slow

PROMPT = "What is the capital of France?"


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EnsembleByHand]:
    """Yield the ensemble with the simulated engine, 5 ms a step."""
    repository = write_release(tmp_path_factory.mktemp("repository"), {"step_ms": 5.0}).parent.parent
    loaded = EnsembleByHand(repository)
    yield loaded
    loaded.close()
    # Without arguments is who has ended and is not waited for yet, a server of another test.
    assert [
        child for child in psutil.Process().children() if "serving.engine_process.engine_loop" in words_of(child)
    ] == []


@pytest.fixture(params=["ensemble", "ensemble_graph", "tensorrt_llm_bls"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def array(value: object, dtype: npt.DTypeLike) -> npt.NDArray[np.generic]:
    return np.array([value if isinstance(value, list) else [value]], dtype=dtype)


def question(**more: npt.NDArray[np.generic]) -> dict[str, npt.NDArray[np.generic]]:
    return {
        "text_input": array(PROMPT.encode(), np.object_),
        "max_tokens": array(12, np.int32),
        "exclude_input_in_output": array(True, np.bool_),
    } | more


def streamed(**more: npt.NDArray[np.generic]) -> dict[str, npt.NDArray[np.generic]]:
    return question(stream=array(True, np.bool_), **more)


def text_of(responses: list[dict[str, npt.NDArray[np.generic]]]) -> str:
    texts: list[bytes] = [response["text_output"][0] for response in responses]
    return b"".join(texts).decode()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("model", PYTHON_MODELS)
def test_an_adapter_is_imported_before_the_stub_has_completed_its_module(model: str) -> None:
    with pb_utils.as_while_a_model_is_imported():
        assert not hasattr(pb_utils, "Tensor")
        assert hasattr(pb_utils, "TRITONSERVER_RESPONSE_COMPLETE_FINAL")
    assert hasattr(load_adapter(DEFAULT_REPOSITORY, model), "execute")


def test_streamed_text_joins_to_the_whole_text(ensemble: EnsembleByHand, model: str) -> None:
    long = {"max_tokens": array(200, np.int32)}  # a second of steps: what a busy machine joins is not all of it
    [whole] = ensemble.ask(question(**long), model)
    assert set(whole) == {"text_output"}
    assert whole["text_output"].shape == (1,)
    chunks = ensemble.ask(streamed(**long), model)
    assert len(chunks) > 1
    assert text_of(chunks) == text_of([whole])
    assert len(text_of(chunks)) > 12


def test_the_prompt_comes_first_unless_it_is_excluded(ensemble: EnsembleByHand, model: str) -> None:
    answer = text_of(ensemble.ask(question(), model))
    assert text_of(ensemble.ask(question(exclude_input_in_output=array(False, np.bool_)), model)) == PROMPT + answer


def test_a_stop_string_ends_the_text_before_itself(ensemble: EnsembleByHand, model: str) -> None:
    whole = text_of(ensemble.ask(question(), model))
    stop = whole[10:14]
    more = {"stop_words": array([stop.encode()], np.object_), "return_finish_reason": array(True, np.bool_)}
    for asked in (question(**more), streamed(**more)):
        responses = ensemble.ask(asked, model)
        assert text_of(responses) == whole[: whole.index(stop)]
        assert responses[-1]["finish_reason"].tolist() == [[b"stop_string"]]


def test_what_was_asked_for_has_upstreams_shapes(ensemble: EnsembleByHand, model: str) -> None:
    asked = {name: array(True, np.bool_) for name in ("return_num_input_tokens", "return_num_output_tokens")}
    responses = ensemble.ask(streamed(**asked), model)
    assert sum(response["num_output_tokens"].item() for response in responses) == 12
    for response in responses:
        assert response["num_input_tokens"].shape == response["num_output_tokens"].shape == (1, 1)
        assert response["num_input_tokens"].dtype == np.int32


@pytest.mark.parametrize(
    ("changes", "code", "text"),
    [
        pytest.param(
            {"top_p": array(1.5, np.float32)}, "INVALID_ARG", "[INVALID_ARG field=top_p value=1.5]", id="range"
        ),
        pytest.param({"text_input": array(b"", np.object_)}, "INVALID_ARG", "text_input is empty", id="empty prompt"),
        pytest.param({"text_input": array(b"\xff", np.object_)}, "INVALID_ARG", "not UTF-8", id="not UTF-8"),
        pytest.param(
            {"max_tokens": array(4000, np.int32)}, "INVALID_ARG", "[INVALID_ARG field=max_tokens", id="too long"
        ),
        pytest.param(
            {"seed": array(2, np.uint64), "random_seed": array(3, np.uint64)},
            "INVALID_ARG",
            "contradicts the same setting under its other name",
            id="does not go together",
        ),
        pytest.param(
            {"pad_id": array(2, np.int32), "end_id": array(-2, np.int32)}, "INVALID_ARG", "end_id", id="end_id"
        ),
    ],
)
def test_a_refusal_is_a_response_with_its_code(
    ensemble: EnsembleByHand, model: str, changes: dict[str, npt.NDArray[np.generic]], code: str, text: str
) -> None:
    with pytest.raises(AdapterError) as caught:
        ensemble.ask(question(**changes), model)
    assert text in str(caught.value)
    assert caught.value.code == getattr(pb_utils.TritonError, code)


@pytest.mark.parametrize(
    ("step", "method"),
    [
        ("preprocessing", "serving.pipeline.prompt_step.PromptStep.prepare"),
        ("postprocessing", "serving.pipeline.text_step.TextStep.respond"),
        ("tensorrt_llm", "serving.pipeline.generation.GenerationService.start"),
        ("ensemble", "serving.release_routing.release_routing.ReleaseRouting.start"),
        ("tensorrt_llm_bls", "serving.release_routing.release_routing.ReleaseRouting.start"),
    ],
)
def test_the_unexpected_fails_one_request_and_shows_no_traceback(
    ensemble: EnsembleByHand, step: str, method: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("nobody thought of it")

    monkeypatch.setattr(method, fail)
    with pytest.raises(AdapterError) as caught:
        ensemble.ask_model(step, {}, request_id="r7")
    assert str(caught.value) == "[INTERNAL] unexpected error; the server's log has the traceback"
    assert caught.value.code == pb_utils.TritonError.INTERNAL
    assert "unexpected error in request 'r7'" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm"])
def test_a_request_for_another_release_is_refused_before_it_is_read(ensemble: EnsembleByHand, model: str) -> None:
    request = pb_utils.InferenceRequest(
        model_name=model, inputs=[], requested_output_names=[], parameters={"release": 7}
    )
    ensemble.adapters[model].execute([request])
    [response] = request.get_response_sender().wait()
    error = response.error()
    assert error is not None
    assert error.message().startswith("[INVALID_ARG field=release value=7]")
    assert error.code() == pb_utils.TritonError.INVALID_ARG


def test_several_prompts_of_one_request_are_answered_as_if_each_were_alone(
    ensemble: EnsembleByHand, model: str
) -> None:
    texts = (b"Who?", PROMPT.encode(), b"x")
    alone = [streamed(text_input=array(text, np.object_)) for text in texts]
    together = {name: np.concatenate([one[name] for one in alone]) for name in alone[0]}
    responses = ensemble.ask(together, model)
    for index, one in enumerate(alone):
        own = [response for response in responses if response["batch_index"].tolist() == [[index]]]
        assert text_of(own) == text_of(ensemble.ask(one, model))


def test_one_bad_request_of_a_batch_fails_alone(ensemble: EnsembleByHand) -> None:
    requests = [
        pb_utils.InferenceRequest(
            model_name="preprocessing",
            inputs=[
                pb_utils.Tensor("QUERY", array(text, np.object_)),
                pb_utils.Tensor("REQUEST_OUTPUT_LEN", array(3, np.int32)),
            ],
            requested_output_names=[],
        )
        for text in (b"good", b"\xff", b"good too")
    ]
    ensemble.adapters["preprocessing"].execute(requests)
    responses = [asked.get_response_sender().wait()[-1] for asked in requests]
    assert [response.has_error() for response in responses] == [False, True, False]


def engine_request(max_tokens: int = 5, **more: npt.NDArray[np.generic]) -> dict[str, npt.NDArray[np.generic]]:
    return {
        "input_ids": array([20, 21], np.int32),
        "input_lengths": array(2, np.int32),
        "request_output_len": array(max_tokens, np.int32),
        "streaming": array(True, np.bool_),
    } | more


def test_direct_callers_of_the_engine_step_get_token_ids_and_their_number(ensemble: EnsembleByHand) -> None:
    responses = ensemble.ask_model("tensorrt_llm", engine_request())
    assert {name for response in responses for name in response} == {"output_ids", "sequence_length"}
    for response in responses:
        assert response["output_ids"].shape == (1, 1, response["sequence_length"].item())
        assert response["sequence_length"].shape == (1, 1)
        assert response["output_ids"].dtype == response["sequence_length"].dtype == np.int32


def test_a_direct_caller_that_goes_away_ends_its_request(ensemble: EnsembleByHand) -> None:
    sender = ensemble.send("tensorrt_llm", engine_request(2000))
    wait_until(lambda: bool(sender.responses))
    sender.is_client_gone = True
    error = sender.wait()[-1].error()
    assert error is not None
    assert error.code() == pb_utils.TritonError.CANCELLED


def test_a_stop_request_ends_the_request_of_its_id(ensemble: EnsembleByHand) -> None:
    running = ensemble.send("tensorrt_llm", engine_request(2000), request_id="a")
    wait_until(lambda: bool(running.responses))
    ensemble.ask_model("tensorrt_llm", engine_request(stop=array(True, np.bool_)), request_id="a")
    assert not any(response.has_error() for response in running.wait())


def test_a_stream_whose_chunks_triton_throws_away_is_ended_and_forgotten(ensemble: EnsembleByHand) -> None:
    # As when the client of an ensemble has gone: the engine step is not told, postprocessing sees no more.
    [tokens] = ensemble.ask_model(
        "preprocessing", {"QUERY": array(PROMPT.encode(), np.object_), "REQUEST_OUTPUT_LEN": array(2000, np.int32)}
    )
    more = {"stream_context": tokens["STREAM_CONTEXT"], "input_ids": tokens["INPUT_ID"]}
    more["input_lengths"] = tokens["REQUEST_INPUT_LEN"]
    sender = ensemble.send("tensorrt_llm", engine_request(1000) | more)
    wait_until(lambda: bool(sender.responses))
    first = {tensor.name(): tensor.as_numpy() for tensor in sender.responses[0].output_tensors()}
    ensemble.ask_model("postprocessing", {"TOKENS_BATCH": first["output_ids"], "STREAM_STATE": first["stream_state"]})
    error = sender.wait()[-1].error()
    assert error is not None
    assert error.code() == pb_utils.TritonError.CANCELLED
    assert len(sender.responses) < 200
    wait_until(lambda: ensemble.adapters["postprocessing"].step.num_streams == 0)


def test_a_stream_whose_last_chunk_triton_throws_away_is_forgotten(ensemble: EnsembleByHand) -> None:
    context = ensemble.ask_model(
        "preprocessing", {"QUERY": array(b"hello", np.object_), "REQUEST_OUTPUT_LEN": array(3, np.int32)}
    )[0]["STREAM_CONTEXT"]
    # Long enough that the first chunk is here before the end.
    sender = ensemble.send("tensorrt_llm", engine_request(300, stream_context=context))
    wait_until(lambda: bool(sender.responses))
    first = {tensor.name(): tensor.as_numpy() for tensor in sender.responses[0].output_tensors()}
    ensemble.ask_model("postprocessing", {"TOKENS_BATCH": first["output_ids"], "STREAM_STATE": first["stream_state"]})
    assert ensemble.adapters["postprocessing"].step.num_streams == 1
    sender.wait()
    wait_until(lambda: ensemble.adapters["postprocessing"].step.num_streams == 0)


def test_gauges_show_the_engine_for_as_long_as_its_model_is_loaded(ensemble: EnsembleByHand) -> None:
    ensemble.ask(question())
    gc.collect()
    gauges = {
        tuple(metric.labels.items()): metric for family in pb_utils.MetricFamily.shown for metric in family.metrics
    }
    of_model = (("model", "tensorrt_llm"), ("version", "1"))
    wait_until(lambda: gauges[*of_model, ("kv_cache_block_type", "used")].value() == 0)
    assert gauges[*of_model, ("kv_cache_block_type", "max")].value() == 2048
    assert gauges[*of_model, ("kv_cache_block_type", "free")].value() == 2048


def test_what_was_loaded_is_unloaded_without_a_trace(tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    ensemble = EnsembleByHand(write_release(tmp_path).parent.parent)
    ensemble.ask(question())
    ensemble.close()
    wait_until(lambda: set(threading.enumerate()) <= threads)
