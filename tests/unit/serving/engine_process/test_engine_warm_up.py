# SPDX-License-Identifier: Apache-2.0
"""An engine generates before it is called ready, and leaves no trace of it."""

import logging
from pathlib import Path

import msgspec
import pytest
from simulated_release import write_release

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.engine_process.engine_loading import load_engine
from serving.engine_process.engine_sources import OwnedEngine
from serving.engine_process.engine_warm_up import warm_up
from serving.engines.seam.base import (
    FIRST_WARM_UP_KEY,
    FinishReason,
    GenerationRequest,
    SamplingParams,
    StepStats,
    TokenChunk,
)
from serving.engines.seam.clock import VirtualClock
from serving.engines.simulated.simulated_engine import SimulatedEngine
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import RequestError, ServerError

pytestmark = pytest.mark.slow

WARM = "the engine is warm"


class SeenEngine(SimulatedEngine):
    """A simulated engine that records its requests and its chunks."""

    def __init__(self, **changes: object) -> None:
        spec = SimulatedEngineSpec.model_validate({"provider": "simulated"} | changes)
        super().__init__(spec, VirtualClock())
        self.asked: list[GenerationRequest] = []
        self.made: list[TokenChunk] = []

    def add(self, request: GenerationRequest) -> None:
        self.asked.append(request)
        super().add(request)

    def step(self) -> list[TokenChunk]:
        chunks = super().step()
        self.made += chunks
        return chunks


def release_of(folder: Path, **changes: object) -> ReleaseSpec:
    engine = {"provider": "simulated", "step_ms": 1.0}
    return load_release(write_release(folder, engine | changes))


def test_an_engine_prefills_and_decodes_and_holds_nothing_afterwards() -> None:
    engine = SeenEngine()
    warm_up(engine)
    assert [len(chunk.token_ids) for chunk in engine.made] == [1, 1], "a step that prefills, and one that decodes"
    assert engine.made[-1].finish_reason is FinishReason.LENGTH
    assert (engine.has_work, engine.stats().num_used_kv_blocks, engine.stats().num_running) == (False, 0, 0)


@pytest.mark.parametrize(
    ("limits", "num_tokens"),
    [
        ({}, 18),
        ({"max_seq_len": 2}, 2),
        ({"max_seq_len": 3}, 3),
        ({"num_kv_blocks": 1, "kv_block_tokens": 2}, 2),
        ({"num_kv_blocks": 1, "kv_block_tokens": 16}, 10),
        ({"max_num_batched_tokens": 1, "max_num_seqs": 1}, 18),
        ({"vocab_size": 17}, 18),
    ],
    ids=["default", "two tokens", "three", "one block of two", "one block", "a token a step", "smallest vocabulary"],
)
def test_the_tightest_limits_leave_room_for_it(limits: dict[str, object], num_tokens: int) -> None:
    engine = SeenEngine(**limits)
    warm_up(engine)
    [request] = engine.asked
    assert len(request.input_ids) + request.sampling.max_tokens == num_tokens
    assert all(0 <= token_id < engine.info.vocab_size for token_id in request.input_ids)
    assert engine.made[-1].finish_reason is FinishReason.LENGTH


def test_an_engine_without_room_for_two_tokens_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = SeenEngine(num_kv_blocks=1, kv_block_tokens=1)
    with caplog.at_level(logging.INFO, "trireme.engine"):
        warm_up(engine)
    assert not engine.asked
    assert "room for one token alone" in caplog.text


def test_an_engine_that_prefills_in_one_step_gets_no_longer_prompt() -> None:
    engine = SeenEngine()
    engine.info = msgspec.structs.replace(engine.info, max_prompt_tokens=3)
    warm_up(engine)
    assert len(engine.asked[0].input_ids) == 3


def test_no_two_of_its_prompts_begin_with_the_same_token() -> None:
    """No prompt finds in the cache what the engine keeps of another prompt."""
    engine = SeenEngine()
    for _ in range(3):
        warm_up(engine)
    firsts = {request.input_ids[0] for request in engine.asked}
    assert len(firsts) == len({request.key for request in engine.asked}) == 3
    assert min(request.key for request in engine.asked) >= FIRST_WARM_UP_KEY


class RefusingEngine(SeenEngine):
    def add(self, request: GenerationRequest) -> None:
        raise RequestError("no requests today", field="input_ids", value=request.key)


def test_an_engine_that_refuses_stays_cold_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trireme.engine"):
        warm_up(RefusingEngine())
    assert "could not be warmed up" in caplog.text
    assert "no requests today" in caplog.text


class FailingEngine(SeenEngine):
    def step(self) -> list[TokenChunk]:
        return [TokenChunk(self.asked[-1].key, [], error="[UNAVAILABLE reason=kv_cache] no room")]


def test_an_engine_that_cannot_generate_is_not_loaded() -> None:
    with pytest.raises(ServerError, match=r"failed to generate before it was ready: .*no room"):
        warm_up(FailingEngine())


def test_what_the_engine_did_before_it_was_ready_is_in_no_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    release = release_of(tmp_path)
    with caplog.at_level(logging.INFO, "trireme.engine"):
        engine = load_engine(release, folder=tmp_path, run_dir=tmp_path, is_inner=False)
    assert caplog.text.count(WARM) == 1
    stats = engine.stats()
    assert (stats.num_steps, stats.steps, stats.num_used_kv_blocks) == (0, StepStats(), 0)
    engine.add(GenerationRequest(key=1, input_ids=[20], sampling=SamplingParams(max_tokens=2)))
    while engine.has_work:
        engine.step()
    stats = engine.stats()
    assert stats.steps is not None
    assert (stats.num_steps, stats.steps.num_steps, stats.steps.num_output_tokens) == (2, 2, 2)


def test_a_deployment_may_do_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    release = release_of(tmp_path).model_copy(update={"is_warmed_up": False})
    with caplog.at_level(logging.INFO, "trireme.engine"):
        load_engine(release, folder=tmp_path, run_dir=tmp_path, is_inner=False)
    assert "warm" not in caplog.text


def test_a_fault_after_requests_counts_those_of_clients(tmp_path: Path) -> None:
    """It would end this process: a crash after no request is for the first that a client sends."""
    release = release_of(tmp_path, fault={"kind": "crash", "after_requests": 0})
    load_engine(release, folder=tmp_path, run_dir=tmp_path, is_inner=False)


def test_a_warm_up_that_does_not_end_is_ended_with_the_time_that_loading_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    folder = write_release(tmp_path, {"provider": "simulated", "step_ms": 60_000.0})
    source = OwnedEngine(folder, load_timeout_s=5.0)
    with pytest.raises(ServerError, match=r"has not loaded within 5 s \(engine.load_timeout_s\)") as caught:
        source.connect()
    source.discard(ends_itself=False)
    assert caught.value.facts["reason"] == "load_timeout"
    assert "being warmed up" in capfd.readouterr().err, "it had been loaded by then"
