# SPDX-License-Identifier: Apache-2.0
"""Features of `tensorrt_llm_bls` alone, on the real server: accumulated text, drafts, release routing, stops by id."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from raw_calls import StreamFailed, engine_request, stream
from running_server import ENDPOINTS, PROJECT, RunningServer, deployment_text
from two_releases import two_releases
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient
from trireme.base.errors import RequestError

BLS = "tensorrt_llm_bls"
ASK: dict[str, object] = {"text_input": "Who?", "max_tokens": 30, "stream": True, "exclude_input_in_output": True}


def texts(server: RunningServer, model: str = BLS, **tensors: object) -> list[str]:
    return [response["text_output"][0].decode() for response in stream(server.url, model, ASK | tensors)]


# Accumulated text and drafts, by a deployment of their own


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server of the demo model with its small sibling that drafts, and accumulated text."""
    models = PROJECT / "examples/demo_model/openvino"
    engine = {
        "provider": "openvino", "dir": str(models / "target"), "draft_dir": str(models / "draft"),
        "is_prefix_caching": False, "num_kv_blocks": 512,
    }  # fmt: skip
    text = deployment_text("drafting", engine=engine, endpoints=ENDPOINTS, bls={"accumulate_tokens": True})
    with RunningServer(text, tmp_path_factory.mktemp("drafting")) as server:
        yield server


# A story goes on for as long as it may.
STORY: dict[str, object] = {"text_input": "Once upon a time", "max_tokens": 60}
DRAFT_OUTPUTS = ["text_output", "total_accepted_draft_tokens", "total_draft_tokens", "acceptance_rate"]


def test_each_accumulated_response_holds_the_text_so_far(drafting: RunningServer) -> None:
    whole = "".join(texts(drafting, "ensemble", **STORY))
    most_responses = 0
    for _ in range(5):  # a busy machine joins the tokens of steps
        accumulated = texts(drafting, BLS, **STORY)
        assert all(whole.startswith(text) for text in accumulated)
        assert accumulated[-1] == whole
        most_responses = max(most_responses, len(accumulated))
        if most_responses > 5:
            break
    assert most_responses > 5


def test_drafts_change_nothing_but_the_number_of_steps(drafting: RunningServer) -> None:
    [plain] = texts(drafting, BLS, **STORY | {"stream": False})
    asked = ASK | STORY | {"num_draft_tokens": 4, "return_perf_metrics": True}
    responses = list(stream(drafting.url, BLS, asked, outputs=DRAFT_OUTPUTS))
    assert responses[-1]["text_output"][0].decode() == plain
    accepted, drafted, rate = (responses[-1][name].item() for name in DRAFT_OUTPUTS[1:])
    assert 0 < accepted < drafted
    assert rate == pytest.approx(accepted / drafted)
    assert len(responses) <= 60 - accepted, "a step makes several tokens"


def test_a_stop_string_cuts_a_drafted_text_exactly(drafting: RunningServer) -> None:
    whole = texts(drafting, BLS, **STORY)[-1]
    stop = whole[25:32]
    drafted = texts(drafting, BLS, **STORY, num_draft_tokens=4, stop_words=[stop])
    assert drafted[-1] == whole[: whole.index(stop)]
    assert all(drafted[-1].startswith(text) for text in drafted)


def test_a_client_that_leaves_ends_the_drafting_for_it(drafting: RunningServer) -> None:
    chunks = stream(drafting.url, BLS, ASK | STORY | {"num_draft_tokens": 4, "max_tokens": 400})
    next(chunks)
    wait_until(lambda: drafting.used_kv_blocks() > 0, 5)
    chunks.close()
    wait_until(lambda: drafting.num_streams() == 0, 5)
    wait_until(lambda: drafting.used_kv_blocks() == 0, 5)


def test_drafts_are_refused_where_nothing_drafts(simulated: RunningServer) -> None:
    with pytest.raises(StreamFailed, match=r"field=num_draft_tokens value=4 provider=simulated.*it has no model"):
        texts(simulated, num_draft_tokens=4)
    with pytest.raises(StreamFailed, match=r"field=use_draft_logits .*it has no model"):
        texts(simulated, use_draft_logits=True)
    assert "".join(texts(simulated, num_draft_tokens=0, use_draft_logits=False)) == "".join(texts(simulated))


def test_pictures_are_refused_by_name_with_the_reason(simulated: RunningServer) -> None:
    picture = np.zeros((1, 1, 3, 2, 2), dtype=np.float16)
    with pytest.raises(StreamFailed, match=r"field=image_input provider=simulated.*read text alone"):
        texts(simulated, image_input=picture)


# Stop requests


@pytest.mark.parametrize("model", ["ensemble", "ensemble_graph", BLS])
def test_a_stop_request_at_the_engine_step_ends_the_request_of_that_id(simulated: RunningServer, model: str) -> None:
    asked = ASK | {"max_tokens": 1500, "return_finish_reason": True}
    running = stream(simulated.url, model, asked, request_id=f"stop {model}")
    next(running)
    stop = stream(simulated.url, "tensorrt_llm", engine_request([1], 1, stop=True), request_id=f"stop {model}")
    assert len(list(stop)) == 1
    rest = list(running)
    assert rest[-1]["finish_reason"].item() == b"cancelled"
    assert len(rest) < 300
    wait_until(lambda: simulated.num_streams() == 0, 5)


# Requests to one release


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the URLs of gRPC and of HTTP."""
    with two_releases(tmp_path_factory.mktemp("two")) as server:
        yield server.url, f"http://127.0.0.1:{server.http_port}/v2/models/{BLS}"


def test_a_request_runs_on_the_release_that_it_names(urls: tuple[str, str]) -> None:
    request = GenerateRequest(text_input="Who?", max_tokens=20, stream=True, exclude_input_in_output=True)
    with TritonClient(urls[0]) as client:

        def ask(**how: object) -> str:
            return "".join(chunk.text for chunk in client.generate(request, **how))  # type: ignore[arg-type]

        expected = {release: ask(model="ensemble", model_version=str(release)) for release in (1, 2)}
        assert expected[1] != expected[2]
        for version in ("1", "2"):
            assert ask(model=BLS, model_version=version) == expected[int(version)]
            for release in (1, 2):
                assert ask(model=BLS, model_version=version, release=release) == expected[release]
        with pytest.raises(RequestError, match="release 3 is not loaded here"):
            ask(model=BLS, release=3)


@pytest.mark.parametrize("model", ["ensemble", "ensemble_graph", "tensorrt_llm"])
def test_a_model_that_serves_one_release_refuses_another_one_by_name(simulated: RunningServer, model: str) -> None:
    asked = engine_request([5, 6], 3) if model == "tensorrt_llm" else ASK

    def ask(release: int) -> int:
        return len(list(stream(simulated.url, model, asked, parameters={"release": release})))

    assert ask(1) > 0
    with pytest.raises(StreamFailed, match=r"\[INVALID_ARG field=release value=7\].*ask tensorrt_llm_bls"):
        ask(7)
    wait_until(lambda: simulated.num_streams() == 0, 5)


@pytest.mark.parametrize("endpoint", ["generate", "versions/1/generate_stream"])
def test_a_release_is_a_key_of_the_json_that_generate_takes(urls: tuple[str, str], endpoint: str) -> None:
    def ask(**more: object) -> str:
        body = {"text_input": "Who?", "max_tokens": 20, "exclude_input_in_output": True} | more
        with urllib.request.urlopen(f"{urls[1]}/{endpoint}", json.dumps(body).encode(), timeout=20) as response:
            answer = response.read().decode().strip().removeprefix("data: ")
        return str(json.loads(answer)["text_output"])

    answers = {release: ask(release=release) for release in (1, 2)}
    assert answers[1] != answers[2]
    assert ask() == answers[2 if endpoint == "generate" else 1]
    if endpoint == "generate":
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(release=3)
        assert b"field=release value=3" in refused.value.read()
