# SPDX-License-Identifier: Apache-2.0
"""Upstream's clients with each of their flags, on a decoupled and on a unary server: each works, or is told by name.

The engines are a real one and the stand-in of TensorRT-LLM's compiled one; `test_contract_table.py` of the documents
holds what the simulated engine refuses.

The README's promise, "a client that worked goes on unchanged". The cases are in `upstream_clients.py` and
`upstream_steps.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest
from running_server import RunningServer
from tritonclient.utils import InferenceServerException
from upstream_clients import END_TO_END, INFLIGHT, INPUT_IDS, PROMPT, end_to_end, inflight
from upstream_steps import COMPARED, SPECULATIVE, STEPS, compared, core_model, speculate, steps

BOTH = pytest.mark.parametrize("streaming", [True, False], ids=["streaming", "whole"])
TEXT_MODELS = ["ensemble", "tensorrt_llm_bls"]


# What each engine cannot, by the flag that asks for it; the field is the one that the client knows.
NO_TABLES = {
    "--lora-path --lora-task-id": "lora_task_id",
    "--draft-tokens-csv": "draft_input_ids",
    "--prompt-embedding-table-path": "prompt_embedding_table",
    "--prompt_table_extra_id": "prompt_table_extra_ids",
    "--lookahead_config": "lookahead_window_size",
}
NO_MODEL_FLAGS = {
    "--bad-words": "bad_words",
    "--embedding-bias-words --embedding-bias-weights": "embedding_bias_words",
    "--return-context-logits": "return_context_logits",
    "--return-generation-logits": "return_generation_logits",
    "--lora-task-id": "lora_task_id",
}
REFUSES: Mapping[str, Mapping[str, str]] = {
    "openvino": NO_TABLES | NO_MODEL_FLAGS | {"--return-perf-metrics": "kv_cache_alloc_new_blocks"},
    "compiled": NO_TABLES | {"--lora-path --lora-task-id": "lora_weights"},
}


@pytest.fixture(params=REFUSES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def decoupled(request: pytest.FixtureRequest, engine: str) -> RunningServer:
    server: RunningServer = request.getfixturevalue(engine)
    return server


@pytest.fixture
def one_response(request: pytest.FixtureRequest, engine: str) -> RunningServer:
    server: RunningServer = request.getfixturevalue(f"{engine}_unary")
    return server


def assert_refused(answer: object, field: str) -> None:
    assert isinstance(answer, str), answer
    assert re.search(rf"\[INVALID_ARG field={field} ", answer), answer


@BOTH
@pytest.mark.parametrize("flag", END_TO_END)
@pytest.mark.parametrize("model", TEXT_MODELS)
def test_the_end_to_end_client_works_on_a_decoupled_server_or_is_told_what_the_engine_cannot(
    decoupled: RunningServer, engine: str, model: str, flag: str, streaming: bool
) -> None:
    case = END_TO_END[flag]
    answer = end_to_end(decoupled, model, case, streaming=streaming)
    if refused := REFUSES[engine].get(flag) or (streaming and case.refused_of):
        assert_refused(answer, refused)
        return
    assert isinstance(answer, list), answer
    shown = [text for prompt in answer for text in prompt]
    is_beams = case.refused_of == "beam_width"  # of which this client shows the best
    assert all(shown[:1] if is_beams else shown)
    is_echoed = not streaming and flag != "--exclude-input-in-output"
    assert all(text.startswith(PROMPT) == is_echoed for text in shown if text)


@BOTH
@pytest.mark.parametrize("flag", END_TO_END)
@pytest.mark.parametrize("model", TEXT_MODELS)
@pytest.mark.parametrize("engine", ["compiled"])
def test_the_end_to_end_client_on_a_unary_server_gets_the_same_or_is_told_not_to_stream(
    decoupled: RunningServer, one_response: RunningServer, engine: str, model: str, flag: str, streaming: bool
) -> None:
    case = END_TO_END[flag]
    answer = end_to_end(one_response, model, case, streaming=streaming)
    if streaming or flag in REFUSES[engine]:
        assert_refused(answer, REFUSES[engine].get(flag) or case.refused_of or "stream")
        return
    assert isinstance(answer, list), answer
    expected = end_to_end(decoupled, model, case, streaming=False)
    # Of several rows in the one response this client looks at the first: upstream's unary servers had none.
    assert answer[0][0] == expected[0][0]


@BOTH
@pytest.mark.parametrize("flag", INFLIGHT)
def test_the_in_flight_client_on_a_decoupled_server_works_over_a_stream_or_is_told_what_the_engine_cannot(
    decoupled: RunningServer, engine: str, flag: str, streaming: bool
) -> None:
    case = INFLIGHT[flag]
    answer = inflight(decoupled, case, streaming=streaming)
    if not streaming and "num_return_sequences" not in case.sends:
        # Triton's own word, and upstream's server had no other: `decoupled: false` is for such clients.
        assert "doesn't support models with decoupled transaction policy" in str(answer)
    elif refused := REFUSES[engine].get(flag) or (streaming and case.refused_of):
        assert_refused(answer, refused)
    else:
        assert_tokens(answer, flag)


@BOTH
@pytest.mark.parametrize("flag", INFLIGHT)
@pytest.mark.parametrize("engine", ["compiled"])
def test_the_in_flight_client_on_a_unary_server_works_without_streaming(
    one_response: RunningServer, engine: str, flag: str, streaming: bool
) -> None:
    case = INFLIGHT[flag]
    answer = inflight(one_response, case, streaming=streaming)
    if streaming or flag in REFUSES[engine]:
        assert_refused(answer, REFUSES[engine].get(flag) or case.refused_of or "streaming")
    else:
        assert_tokens(answer, flag)


def assert_tokens(answer: object, flag: str) -> None:
    assert isinstance(answer, list), answer
    first = answer[0]
    is_excluded = flag == "--exclude-input-in-output"
    if not is_excluded:
        assert first[: len(INPUT_IDS)] == INPUT_IDS
    made = first if is_excluded else first[len(INPUT_IDS) :]
    assert len(made) == (3 if flag == "--request-output-len" else 6)


@pytest.mark.parametrize("flag", SPECULATIVE)
def test_the_speculative_client_works_without_drafts_and_is_told_that_nothing_verifies_them(
    compiled_unary: RunningServer, flag: str
) -> None:
    case = SPECULATIVE[flag]
    text = speculate(compiled_unary, replace(case, num_draft_tokens=0))
    assert text.startswith(PROMPT)
    assert len(text) > len(PROMPT)
    if case.num_draft_tokens:
        with pytest.raises(InferenceServerException, match=r"\[INVALID_ARG field=draft_input_ids "):
            speculate(compiled_unary, case)


@pytest.mark.parametrize("num_draft_tokens", [5, 0], ids=["", "--num-draft-tokens"])
@pytest.mark.parametrize("flag", COMPARED)
def test_the_comparison_of_speculative_decoding_ends_with_two_texts(
    compiled_unary: RunningServer, flag: str, num_draft_tokens: int
) -> None:
    case, is_bls = COMPARED[flag]
    if not is_bls:  # the speculative client, which sends drafts
        with pytest.raises(InferenceServerException, match=r"\[INVALID_ARG field=draft_input_ids "):
            compared(compiled_unary, case, is_bls=is_bls)
        return
    control, drafted = compared(compiled_unary, case, is_bls=is_bls, num_draft_tokens=num_draft_tokens)
    assert control.startswith(PROMPT)
    if num_draft_tokens or flag == "--use-draft-logits":  # this deployment has nothing that drafts
        assert_refused(drafted, "num_draft_tokens" if num_draft_tokens else "use_draft_logits")
    else:
        assert drafted == control


@pytest.mark.parametrize("protocol", ["grpc", "http"])
@pytest.mark.parametrize("flag", STEPS)
def test_the_steps_called_one_by_one_give_the_text_of_the_ensemble(
    compiled_unary: RunningServer, protocol: str, flag: str
) -> None:
    by_steps, *others = steps(compiled_unary, protocol, STEPS[flag])
    assert others == [by_steps, by_steps]
    assert by_steps.startswith(PROMPT)


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_the_benchmark_of_the_core_model_runs_on_a_unary_server(unary: RunningServer, protocol: str) -> None:
    assert core_model(unary, protocol) == len(INPUT_IDS) + 6


def test_the_benchmark_of_the_core_model_runs_decoupled(simulated: RunningServer) -> None:
    assert core_model(simulated, "grpc", is_stream=True) == len(INPUT_IDS) + 6


def test_the_benchmark_with_ids_drawn_from_all_numbers_is_told_the_vocabulary(unary: RunningServer) -> None:
    # Its workloads token-norm-dist and token-from-histogram; `dataset` sends a tokenizer's.
    with pytest.raises(InferenceServerException, match=r"\[INVALID_ARG field=input_ids value=2000000000"):
        core_model(unary, "grpc", ids=[5, 2_000_000_000])


def test_clients_that_call_the_steps_work_on_a_real_model(openvino_unary: RunningServer) -> None:
    by_steps, *others = steps(openvino_unary, "http")
    assert others == [by_steps, by_steps]
    # Its engine verifies no drafts of a client's.
    assert speculate(openvino_unary, SPECULATIVE["--num-draft-tokens 0"]).startswith(PROMPT)
    with pytest.raises(InferenceServerException, match=r"\[INVALID_ARG field=draft_input_ids "):
        speculate(openvino_unary, SPECULATIVE["none"])
