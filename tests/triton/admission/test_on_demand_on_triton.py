# SPDX-License-Identifier: Apache-2.0
"""Two models that do not fit together, on one server: every request is answered, and one is in memory at a time."""

import threading
import time
from collections.abc import Iterator

import psutil
import pytest
import yaml
from process_words import words_of
from running_server import PROJECT, RunningServer
from waiting import wait_until

from clients.streaming import GenerateRequest, TritonClient

MIN_RESIDENT_S = 1.0


@pytest.fixture(scope="module")
def turns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = []
    for name, engine in (
        ("real", {"provider": "openvino", "dir": str(PROJECT / "examples/demo_model/openvino/target")}),
        ("toy", {"provider": "simulated", "step_ms": 2.0}),
    ):
        pool = {"pool_mib": 100, "memory_mib": 60, "min_resident_s": MIN_RESIDENT_S, "max_slice_s": 2.0}
        tokenizer = {"dir": str(PROJECT / "examples/demo_model/target")}
        admission: dict[str, object] = {} if name == "toy" else {"admission": {}}
        models.append(
            {"name": name, "tokenizer": tokenizer, "engine": engine, "endpoints": ["ensemble"], "on_demand": pool}
            | admission
        )
    with RunningServer(yaml.safe_dump({"name": "turns", "models": models}), tmp_path_factory.mktemp("turns")) as server:
        yield server


def text(server: RunningServer, model: str, max_tokens: int = 12) -> str:
    request = GenerateRequest(text_input="What is the capital of France?", max_tokens=max_tokens, stream=True)
    with TritonClient(server.url) as client:
        return "".join(chunk.text for chunk in client.generate(request, model=f"{model}_ensemble", timeout_s=60))


def num_loaded(server: RunningServer) -> int:
    return sum(is_inner(process) and not is_inner(process.parent()) for process in server.descendants())


def is_inner(process: psutil.Process | None) -> bool:
    return process is not None and "--inner" in words_of(process)


def num_loads(server: RunningServer) -> dict[str, float]:
    return {name: server.metric("trireme_engine_loads_total", model=f"{name}_tensorrt_llm") for name in ("real", "toy")}


def test_each_answers_when_asked_and_one_is_in_memory_at_a_time(turns: RunningServer) -> None:
    for _ in range(2):
        assert "Paris" in text(turns, "real")
        assert num_loaded(turns) == 1
        assert len(text(turns, "toy")) > 12
        assert num_loaded(turns) == 1
    wait_until(lambda: turns.metric("trireme_engine_resident", model="toy_tensorrt_llm") == 1, 5)
    assert turns.metric("trireme_engine_resident", model="real_tensorrt_llm") == 0


def test_two_that_are_asked_all_the_time_change_no_more_often_than_they_may(turns: RunningServer) -> None:
    before, start_s = num_loads(turns), time.monotonic()
    seconds = 8.0
    most_loaded = 0
    answers: dict[str, list[str]] = {"real": [], "toy": []}
    failures: list[BaseException] = []

    def ask(model: str) -> None:
        try:
            while time.monotonic() - start_s < seconds:
                answers[model].append(text(turns, model, max_tokens=8))
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=ask, args=(model,)) for model in answers for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most_loaded = max(most_loaded, num_loaded(turns))
        time.sleep(0.02)
    assert not failures
    assert most_loaded == 1
    took_s = time.monotonic() - start_s
    loads = {name: count - before[name] for name, count in num_loads(turns).items()}
    assert sum(loads.values()) <= took_s / MIN_RESIDENT_S + 2
    assert min(loads.values()) >= 1, "neither had the memory all the time"
    assert all(len(set(texts)) == 1 for texts in answers.values())


def test_a_server_with_an_engine_that_is_not_in_memory_is_ready_and_stops_cleanly(turns: RunningServer) -> None:
    assert turns.is_ready()
    text(turns, "toy")
    assert turns.stop() == 0
    assert turns.shared_memory() == []
