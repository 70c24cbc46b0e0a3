# SPDX-License-Identifier: Apache-2.0
"""Two language models and one of the user's own on one server: each answers as if it were alone."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as grpcclient
import yaml
from deployment_bases import write_own_models
from killed_clients import ENDLESS
from process_words import words_of
from raw_calls import stream
from running_server import PROJECT, RunningServer
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = write_own_models(tmp_path_factory.mktemp("pair"))
    tokenizer = {"dir": str(PROJECT / "examples/demo_model/target")}
    engine = {"provider": "simulated", "step_ms": 5.0}
    limiter = {"resources": [{"name": "slots", "count": 1}]}
    later = {"release": 2, "tokenizer": tokenizer, "engine": engine | {"seed": 3}}
    deployment = {
        "name": "pair",
        "models": [
            {
                "name": "chat",
                "tokenizer": tokenizer,
                "engine": engine | {"seed": 1},
                "rate_limiter": limiter | {"priority": 2},
                "instances": {"preprocessing": 2},
                "triton_queue": {"max_queue_size": 100},
                "other_releases": [later],
                "placement": {"cpus": [0]},
            },
            {"name": "code", "prefix": "", "tokenizer": tokenizer, "engine": engine | {"seed": 2}},
        ],
        "extra_models": [{"name": "doubling", "dir": "doubling", "rate_limiter": limiter}],
        "rate_limiter": [{"name": "slots", "count": 2}],
    }
    with RunningServer(yaml.safe_dump(deployment), folder) as server:
        yield server


def texts(server: RunningServer, **how: object) -> list[str]:
    request = GenerateRequest(text_input="Who?", max_tokens=20, stream=True, exclude_input_in_output=True)
    with TritonClient(server.url) as client:
        return [chunk.text for chunk in client.generate(request, **how)]  # type: ignore[arg-type]


def used_blocks(server: RunningServer, model: str) -> float:
    labels = {"model": model, "version": "1", "kv_cache_block_type": "used"}
    return server.metric("nv_trt_llm_kv_cache_block_metrics", **labels)


def test_every_way_to_a_model_gives_that_models_text(pair: RunningServer) -> None:
    of = {
        prefix: {
            "".join(texts(pair, model=prefix + step)) for step in ("ensemble", "ensemble_graph", "tensorrt_llm_bls")
        }
        for prefix in ("chat_", "")
    }
    assert {prefix: len(found) for prefix, found in of.items()} == {"chat_": 1, "": 1}
    assert of["chat_"] != of[""]


def test_a_later_release_is_reached_by_name_alone(pair: RunningServer) -> None:
    stable, named, candidate = (
        "".join(texts(pair, model="chat_tensorrt_llm_bls", **how)) for how in ({}, {"release": 1}, {"release": 2})
    )
    assert stable == named != candidate
    with pytest.raises(Exception, match="release 2 is not loaded here"):
        texts(pair, model="tensorrt_llm_bls", release=2)  # of the other model


@pytest.mark.parametrize("model", ["chat_ensemble", "chat_ensemble_graph", "chat_tensorrt_llm_bls"])
def test_a_client_that_goes_frees_the_blocks_of_its_model(pair: RunningServer, model: str) -> None:
    running = stream(pair.url, model, {"text_input": "Who?", "max_tokens": ENDLESS, "stream": True})
    next(running)
    wait_until(lambda: used_blocks(pair, "chat_tensorrt_llm") > 0, 5)
    running.close()
    wait_until(lambda: used_blocks(pair, "chat_tensorrt_llm") == 0, 5)
    assert used_blocks(pair, "tensorrt_llm") == 0


def test_the_users_own_model_is_served_beside_them(pair: RunningServer) -> None:
    with grpcclient.InferenceServerClient(pair.url) as client:
        tensor = grpcclient.InferInput("IN", [1], "FP32")
        tensor.set_data_from_numpy(np.array([21.0], np.float32))
        assert client.infer("doubling", [tensor]).as_numpy("OUT").item() == 42.0


def test_an_engine_runs_on_the_cores_it_is_given(pair: RunningServer) -> None:
    engines = [p for p in pair.descendants() if "serving.engine_process.engine_loop" in words_of(p)]
    assert len(engines) == 3
    placed = [p.cpu_affinity() for p in engines if "chat_tensorrt_llm/1" in " ".join(words_of(p))]
    assert placed == [[0]]


def test_the_start_says_which_models_there_are(pair: RunningServer) -> None:
    [line] = [line for line in pair.log().splitlines() if line.startswith("  models   ")]
    ways = ("ensemble", "tensorrt_llm_bls", "ensemble_graph")
    assert line.split(maxsplit=1)[1] == ", ".join([*(f"chat_{way}" for way in ways), *ways, "doubling"])
    assert "--model chat_ensemble\n" in pair.log()


def test_more_releases_than_triton_has_threads_by_itself_are_loaded(tmp_path: Path) -> None:
    """Four clients of engines that wait for their owners would keep Triton from loading these for a minute."""
    tokenizer = {"dir": str(PROJECT / "examples/demo_model/target")}
    releases = [
        {"release": number, "tokenizer": tokenizer, "engine": {"provider": "simulated", "seed": number}}
        for number in range(1, 6)
    ]
    model = releases[-1] | {"name": "m", "endpoints": ["ensemble"], "other_releases": releases[:-1]}
    with RunningServer(yaml.safe_dump({"name": "five", "models": [model]}), tmp_path) as server:
        answers = {"".join(texts(server, model="m_ensemble", model_version=str(n))) for n in range(1, 6)}
    assert len(answers) == 5
