# SPDX-License-Identifier: Apache-2.0
"""The TensorRT-LLM providers in the engine's own process, from a release to its tokens, on the fake `tensorrt_llm`."""

import os
import queue
import re
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fake_tensorrt_llm import fake_folder, write_checkpoint, write_engine
from pydantic import TypeAdapter
from simulated_release import TOKENIZER

from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engine_process.engine_client import EngineClient
from serving.engine_process.engine_messages import Step
from serving.engine_process.engine_sources import OwnedEngine
from serving.engines.seam.base import FinishReason, GenerationRequest, SamplingParams, TokenChunk
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import ServerError, Unavailable
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow


class Recorder:
    """The reports of a client."""

    def __init__(self) -> None:
        self.chunks: queue.Queue[TokenChunk] = queue.Queue()
        self.deaths: list[Unavailable] = []

    def on_steps(self, steps: list[Step]) -> None:
        for step in steps:
            for chunk in step.chunks:
                self.chunks.put(chunk)

    def outputs(self, num_requests: int) -> dict[int, TokenChunk]:
        """Return the joined output of each request, when all have ended."""
        joined: dict[int, TokenChunk] = {}
        while (
            sum(chunk.finish_reason is not None or chunk.error is not None for chunk in joined.values()) < num_requests
        ):
            chunk = self.chunks.get(timeout=20)
            whole = joined.setdefault(chunk.key, TokenChunk(chunk.key, []))
            whole.token_ids += chunk.token_ids
            whole.finish_reason, whole.error = chunk.finish_reason, chunk.error
        return joined


@pytest.fixture(params=["tensorrt", "pytorch"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> EngineSpec:
    folder = {"tensorrt": write_engine, "pytorch": write_checkpoint}[request.param](tmp_path / "model")
    spec: EngineSpec = TypeAdapter[EngineSpec](EngineSpec).validate_python({"provider": request.param, "dir": folder})
    return spec


def client_of(
    engine: EngineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> tuple[EngineClient, Recorder]:
    """Return a client whose engine process finds the fake of a version."""
    path = [str(tmp_path / "first"), fake_folder(version), str(CODE_ROOT / "tests/fakes")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    spec = DeploymentSpec.of_one(name="test", tokenizer=TokenizerSpec(dir=TOKENIZER), engine=engine)
    write_repository(spec, root=tmp_path / "repository", source="test.yaml")
    recorder = Recorder()
    release = tmp_path / "repository" / "tensorrt_llm" / "1"
    source = OwnedEngine(release)
    return EngineClient(source, on_steps=recorder.on_steps, on_death=recorder.deaths.append), recorder


@pytest.fixture
def started(
    engine: EngineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[EngineClient, Recorder]]:
    client, recorder = client_of(engine, tmp_path, monkeypatch, "1.2.1")
    client.start()
    yield client, recorder
    client.close()
    assert recorder.deaths == []


def submit(client: EngineClient, key: int, *stop_strings: str, max_tokens: int = 20, **sampling: object) -> None:
    params = SamplingParams(**({"max_tokens": max_tokens, "end_id": -1} | sampling))  # type: ignore[arg-type]
    client.submit(GenerationRequest(key=key, input_ids=[30, 31], sampling=params, stop_strings=stop_strings))


def test_requests_are_generated_refused_stopped_and_cancelled(started: tuple[EngineClient, Recorder]) -> None:
    client, recorder = started
    assert client.info.provider in ("tensorrt", "pytorch")
    submit(client, 1)
    plain = recorder.outputs(1)[1]
    assert (len(plain.token_ids), plain.finish_reason) == (20, FinishReason.LENGTH)

    tokenizer = load_tokenizer(TOKENIZER)
    stop = next(text for text in (tokenizer.decode([token]).strip() for token in plain.token_ids[5:]) if text)
    submit(client, 2, stop, max_tokens=500)
    submit(client, 3, beam_width=4)
    submit(client, 4, max_tokens=2000)
    client.cancel(4)
    outputs = recorder.outputs(3)
    assert outputs[2].finish_reason is FinishReason.STOP_STRING
    assert outputs[2].token_ids == plain.token_ids[: len(outputs[2].token_ids)]
    assert outputs[3].error is not None
    assert "field=beam_width" in outputs[3].error
    assert outputs[4].finish_reason is FinishReason.CANCELLED


def num_wakings(client: EngineClient, seconds: float) -> int:
    """Return how often the threads of an idle engine's process have slept and gone on in `seconds` seconds."""
    process = psutil.Process(client.pid)

    def so_far() -> int:
        threads = Path(f"/proc/{process.pid}/task").glob("*/status")
        texts = [thread.read_text() for thread in threads]
        return sum(int(re.findall(r"^voluntary_ctxt_switches:\s*(\d+)", text, re.MULTILINE)[0]) for text in texts)

    before = so_far()
    time.sleep(seconds)
    return so_far() - before


def test_an_idle_engine_process_sleeps(started: tuple[EngineClient, Recorder]) -> None:
    client, recorder = started
    for key in range(1, 101):  # more than a batch holds: some wait upstream
        submit(client, key, max_tokens=1000)
    for key in range(1, 101):
        client.cancel(key)
    assert {output.finish_reason for output in recorder.outputs(100).values()} == {FinishReason.CANCELLED}
    submit(client, 101)
    assert len(recorder.outputs(1)[101].token_ids) == 20
    process = psutil.Process(client.pid)
    time.sleep(1.0)  # the last cancels are confirmed, and the last stats have come
    cpu_before_s = sum(process.cpu_times()[:2])
    # Its loop wakes once a second to tell its owner that it is well; one that polled for upstream would 1,000 times.
    assert num_wakings(client, 2.0) < 100
    assert sum(process.cpu_times()[:2]) - cpu_before_s < 0.2


NOTING_SHUTDOWN = """
import os, pathlib
from trtllm_behaviour import Executor

shutdown = Executor.shutdown

def noting(self):
    shutdown(self)
    pathlib.Path(os.environ["NOTED_SHUTDOWN"]).touch()

Executor.shutdown = noting
"""


def test_upstreams_processes_are_shut_down_with_the_engine(
    engine: EngineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTED_SHUTDOWN", str(tmp_path / "shut down"))
    client, _ = client_of(engine, tmp_path, monkeypatch, "1.2.1")
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "sitecustomize.py").write_text(NOTING_SHUTDOWN)
    client.start()
    submit(client, 1, max_tokens=500)
    client.close()
    assert (tmp_path / "shut down").exists()


def test_what_cannot_be_loaded_says_why_through_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = TypeAdapter[EngineSpec](EngineSpec).validate_python(
        {"provider": "tensorrt", "dir": write_engine(tmp_path / "model")}
    )
    client, _ = client_of(spec, tmp_path, monkeypatch, "1.3.0")
    with pytest.raises(ServerError, match=r"\[INVALID_SPEC field=engine.provider .* needs TensorRT-LLM before 1\.3"):
        client.start()
    client.close()
