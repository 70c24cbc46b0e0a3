# SPDX-License-Identifier: Apache-2.0
"""Sampling and outputs that a request may ask for, through the ensemble on the real server."""

import re
import time
from collections.abc import Generator, Iterator

import numpy as np
import pytest
from raw_calls import Array, StreamFailed, stream
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text
from test_ensemble import ASK, PROMPT, texts
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_a_penalty_reaches_the_engine(compiled: RunningServer, model: str, name: str) -> None:
    assert texts(compiled, model, **{name: 1.5}) == texts(compiled, model, **{name: 1.5}) != texts(compiled, model)


def test_a_penalty_makes_a_real_model_repeat_itself_less(openvino: RunningServer, model: str) -> None:
    story: dict[str, object] = {"text_input": "Once upon a time", "max_tokens": 100}
    [free], [penalised] = (texts(openvino, model, **story, frequency_penalty=penalty) for penalty in (0.0, 2.0))
    assert len(set(penalised.split())) / len(penalised.split()) > len(set(free.split())) / len(free.split())


def by_sequence(responses: list[dict[str, Array]]) -> dict[int, str]:
    found: dict[int, str] = {}
    for response in responses:
        index = int(response["sequence_index"][0][0])
        found[index] = found.get(index, "") + response["text_output"][0].decode()
    return found


@pytest.mark.parametrize("is_streaming", [True, False])
def test_every_sequence_of_a_request_has_the_exact_text_of_its_seed(
    simulated: RunningServer, model: str, is_streaming: bool
) -> None:
    sampled = {"top_p": 0.9, "max_tokens": 40}
    alone = [texts(simulated, model, **sampled, seed=seed)[0] for seed in (7, 8, 9)]
    asked = ASK | sampled | {"seed": 7, "num_return_sequences": 3, "stream": is_streaming}
    responses = list(stream(simulated.url, model, asked))
    assert by_sequence(responses) == dict(enumerate(alone))
    assert all(response["sequence_index"].shape == (1, 1) for response in responses)
    assert len(responses) == 3 or is_streaming


def active_requests(server: RunningServer) -> float:
    return server.metric("nv_trt_llm_request_metrics", model="tensorrt_llm", request_type="active")


def test_a_client_that_leaves_ends_all_sequences_of_its_request(simulated: RunningServer, model: str) -> None:
    asked = ASK | {"max_tokens": 1500, "num_return_sequences": 4, "top_p": 0.9, "stream": True}
    responses = stream(simulated.url, model, asked)
    for _ in range(8):
        next(responses)
    wait_until(lambda: active_requests(simulated) == 4, timeout_s=5)
    assert isinstance(responses, Generator)
    responses.close()
    wait_until(lambda: active_requests(simulated) == 0, timeout_s=5)


def test_log_probabilities_have_upstreams_shapes_and_follow_the_tokens(openvino: RunningServer, model: str) -> None:
    asked = ASK | {"return_log_probs": True, "return_num_output_tokens": True}
    [whole] = stream(openvino.url, model, asked)
    num_tokens = int(whole["num_output_tokens"][0][0])
    assert whole["output_log_probs"].shape == (1, 1, num_tokens)
    assert whole["cum_log_probs"].shape == (1, 1)
    assert whole["cum_log_probs"][0][0] == pytest.approx(whole["output_log_probs"].sum(), abs=1e-4)
    streamed = list(stream(openvino.url, model, asked | {"stream": True}))
    parts = np.concatenate([response["output_log_probs"] for response in streamed], axis=2)
    assert parts == pytest.approx(whole["output_log_probs"], abs=0.05)
    assert streamed[-1]["cum_log_probs"][0][0] == pytest.approx(parts.sum(), abs=1e-4)


KV_OUTPUTS = {"kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"}
TIME_OUTPUTS = {"arrival_time_ns", "first_scheduled_time_ns", "first_token_time_ns", "last_token_time_ns"}
DRAFT_OUTPUTS = {"acceptance_rate", "total_accepted_draft_tokens", "total_draft_tokens"}


@pytest.mark.parametrize("name", ["return_perf_metrics", "return_kv_cache_reuse_stats"])
def test_each_response_tells_of_the_performance(simulated: RunningServer, model: str, name: str) -> None:
    before_ns = time.time_ns()
    responses = list(stream(simulated.url, model, ASK | {"stream": True, name: True}))
    last = responses[-1]
    outputs = KV_OUTPUTS | TIME_OUTPUTS | DRAFT_OUTPUTS
    assert set(last) == outputs | {"text_output"}
    assert all(outputs <= set(response) for response in responses)  # upstream's client looks at each
    assert all(last[output].shape == (1, 1) for output in outputs)
    arrival, scheduled, first, end = (int(last[output][0][0]) for output in sorted(TIME_OUTPUTS))
    assert before_ns < arrival < scheduled < first < end < time.time_ns()


def test_what_openvino_does_not_tell_of_the_kv_cache_is_refused_by_name(openvino: RunningServer, model: str) -> None:
    asked = ASK | {"return_perf_metrics": True}
    refusal = r"\[INVALID_ARG field=kv_cache_alloc_new_blocks provider=openvino\].*name these among the outputs"
    with pytest.raises(StreamFailed, match=refusal):
        list(stream(openvino.url, model, asked))
    with pytest.raises(StreamFailed, match=refusal):
        list(stream(openvino.url, model, asked, outputs=["text_output", "arrival_time_ns", *KV_OUTPUTS]))


@pytest.mark.parametrize("model", ["ensemble", "tensorrt_llm_bls"])  # Triton's own ensemble hands no names on
def test_what_openvino_measures_is_there_for_who_names_it(openvino: RunningServer, model: str) -> None:
    named = {"text_output", *TIME_OUTPUTS, *DRAFT_OUTPUTS}
    [whole] = stream(openvino.url, model, ASK | {"return_perf_metrics": True}, outputs=sorted(named))
    assert set(whole) == named


def test_bad_words_and_biased_ones_reach_the_engine(compiled: RunningServer, model: str) -> None:
    bias = {"embedding_bias_words": [" Paris"], "embedding_bias_weights": [100.0]}
    bad = {"bad_words": [" Paris"]}  # of one token
    answers = [texts(compiled, model, **asked)[0] for asked in ({}, bias, bad, bias | bad)]
    assert len(set(answers)) == 4


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"bad_words": ["Paris"]}, "bad_words"),
        ({"embedding_bias_words": ["Paris"], "embedding_bias_weights": [1.0]}, "embedding_bias_words"),
    ],
)
def test_what_openvino_cannot_do_is_refused_with_its_name_and_the_reason(
    openvino: RunningServer, model: str, asked: dict[str, object], field: str
) -> None:
    with pytest.raises(StreamFailed) as failure:
        list(stream(openvino.url, model, ASK | asked))
    assert f"[INVALID_ARG field={field} " in str(failure.value)
    assert "provider=openvino]" in str(failure.value)
    assert "takes no mask or bias on logits" in str(failure.value)


def test_a_guide_shapes_the_text_and_a_bad_one_fails_alone(openvino: RunningServer, model: str) -> None:
    guided: dict[str, object] = {
        "guided_decoding_guide_type": "regex",
        "guided_decoding_guide": "(Rome|Madrid) [0-9]{3}",
    }
    [text] = texts(openvino, model, **guided)
    assert re.fullmatch("(Rome|Madrid) [0-9]{3}", text)
    assert "".join(texts(openvino, model, **guided, stream=True)) == text
    with pytest.raises(StreamFailed) as failure:
        list(stream(openvino.url, model, ASK | guided | {"guided_decoding_guide": "([a-z"}))
    assert "[INVALID_ARG field=guided_decoding_guide] the guide is no regex that compiles" in str(failure.value)
    assert texts(openvino, model, **guided) == [text]


def test_beams_of_a_model_come_the_best_first(openvino: RunningServer, model: str) -> None:
    search = {
        "beam_width": 3,
        "length_penalty": np.array([[0.0]], dtype=np.float32),
        "return_log_probs": True,
        "max_tokens": 12,
    }
    [response] = stream(openvino.url, model, ASK | search)
    assert response["text_output"].shape == (3,)
    assert len({text.decode() for text in response["text_output"]}) > 1
    sums = response["cum_log_probs"][0].tolist()
    assert sums == sorted(sums, reverse=True)


@pytest.mark.parametrize(
    "asked",
    [
        {"frequency_penalty": 1.5},
        {"bad_words": ["Paris"]},
        {"return_log_probs": True},
        {"return_context_logits": True},
        {"beam_width": 3},
        {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a+"},
    ],
    ids=lambda asked: next(iter(asked)),
)
def test_what_needs_a_model_is_refused_by_the_simulated_engine(
    simulated: RunningServer, model: str, asked: dict[str, object]
) -> None:
    with pytest.raises(StreamFailed, match=rf"\[INVALID_ARG field={next(iter(asked))} .*it has no model"):
        list(stream(simulated.url, model, ASK | asked))


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = PROJECT / "examples/demo_model/openvino"
    engine = {"provider": "openvino", "dir": str(models / "target"), "draft_dir": str(models / "draft")}
    text = deployment_text("drafting", engine=engine | {"is_prefix_caching": False}, endpoints=ENDPOINTS)
    with RunningServer(text, tmp_path_factory.mktemp("drafting")) as server:
        yield server


def test_a_draft_model_changes_nothing_but_what_it_saves(
    openvino: RunningServer, model: str, drafting: RunningServer
) -> None:
    story = ASK | {"text_input": "Once upon a time", "max_tokens": 60}
    assert texts(drafting, model, **story) == texts(openvino, model, **story)
    outputs = ["text_output", *TIME_OUTPUTS, *DRAFT_OUTPUTS]
    of_graph = model == "ensemble_graph"  # which hands on no names of outputs, so that all are asked for
    asked = "ensemble" if of_graph else model
    [response] = stream(drafting.url, asked, story | {"return_perf_metrics": True}, outputs=outputs)
    accepted, drafted = (int(response[name][0][0]) for name in ("total_accepted_draft_tokens", "total_draft_tokens"))
    assert 20 < accepted <= drafted
    assert response["acceptance_rate"][0][0] == pytest.approx(accepted / drafted)


def test_our_own_client_gives_what_was_asked_for_as_typed_values(openvino: RunningServer) -> None:
    request = GenerateRequest(
        text_input=PROMPT,
        max_tokens=4,
        stream=True,
        top_p=0.9,
        seed=3,
        num_return_sequences=2,
        frequency_penalty=0.5,
        return_log_probs=True,
        return_num_output_tokens=True,
        return_perf_metrics=True,
    )
    named = ("arrival_time_ns", "last_token_time_ns", "total_draft_tokens")
    with TritonClient(openvino.url) as client:
        chunks = list(client.generate(request, perf_outputs=named))
    assert {chunk.sequence_index for chunk in chunks} == {0, 1}
    assert all(len(chunk.log_probs or ()) == chunk.num_output_tokens for chunk in chunks)
    for index in (0, 1):
        own = [chunk for chunk in chunks if chunk.sequence_index == index]
        log_probs = [log_prob for chunk in own for log_prob in chunk.log_probs or ()]
        assert own[-1].cum_log_prob == pytest.approx(sum(log_probs), abs=1e-4)
        assert all(chunk.perf is not None for chunk in own)
    perf = chunks[-1].perf
    assert perf is not None
    assert perf["arrival_time_ns"] < perf["last_token_time_ns"]
    assert perf["total_draft_tokens"] == 0
