# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM behind the seam where it differs from an engine that we drive: it runs by itself, and may die."""

import math
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine
from pydantic import TypeAdapter
from trtllm_behaviour import Executor

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import BatchStats, Engine, FinishReason, GenerationRequest, SamplingParams, TokenChunk
from serving.engines.tensorrt_llm import trtllm_engine
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine
from serving.engines.tensorrt_llm.trtllm_outputs import RunningRequest
from serving.engines.tensorrt_llm.trtllm_perf import read_perf_metrics
from serving.engines.tensorrt_llm.trtllm_stats import NO_STATS, IterationStats, read_stats
from trireme.base.errors import RequestError, ServerError, SpecError


class Maker:
    """A maker of running engines of a provider, with what runs behind each."""

    def __init__(self, provider: str, folder: Path) -> None:
        self._spec = {"provider": provider, "dir": folder}
        self.opened: list[Engine] = []

    def __call__(self, **settings: object) -> tuple[TrtLlmEngine, Executor]:
        engine = create_engine(TypeAdapter[EngineSpec](EngineSpec).validate_python(self._spec | settings))
        assert isinstance(engine, TrtLlmEngine)
        self.opened.append(engine)
        return engine, Executor.created[-1]


@pytest.fixture(params=["tensorrt", "pytorch"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Maker]:
    folder = {"tensorrt": write_engine, "pytorch": write_checkpoint}[request.param](tmp_path / "model")
    maker = Maker(request.param, folder)
    with fake_tensorrt_llm():
        yield maker
    for engine in maker.opened:
        engine.close()


def add(engine: Engine, key: int, prompt: list[int], *, max_tokens: int = 8, **sampling: object) -> None:
    params = SamplingParams(**({"max_tokens": max_tokens, "end_id": -1} | sampling))  # type: ignore[arg-type]
    engine.add(GenerationRequest(key=key, input_ids=prompt, sampling=params))


def run(engine: Engine) -> dict[int, TokenChunk]:
    """Return everything that the running requests make, joined."""
    joined: dict[int, TokenChunk] = {}
    deadline_s = time.monotonic() + 20.0
    while engine.has_work:
        assert time.monotonic() < deadline_s, "the engine does not come to an end"
        for chunk in engine.step():
            whole = joined.setdefault(chunk.key, TokenChunk(chunk.key, []))
            whole.token_ids += chunk.token_ids
            whole.finish_reason, whole.error = chunk.finish_reason, chunk.error
            if chunk.log_probs is not None:
                whole.log_probs = (whole.log_probs or []) + chunk.log_probs
    return joined


def output_of(engine: Engine, prompt: list[int], **sampling: object) -> TokenChunk:
    add(engine, 1, prompt, **sampling)  # type: ignore[arg-type]
    return run(engine)[1]


def test_a_batch_that_runs_by_itself_is_followed_to_its_end(make: Maker) -> None:
    engine, _ = make(max_num_seqs=4)
    for key in range(10):
        add(engine, key, [20 + key, 21], max_tokens=5 + key)
    outputs = run(engine)
    assert {key: len(output.token_ids) for key, output in outputs.items()} == {key: 5 + key for key in range(10)}
    assert {output.finish_reason for output in outputs.values()} == {FinishReason.LENGTH}


def test_what_was_made_between_two_steps_comes_in_one_chunk(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    for key, max_tokens in ((1, 5), (2, 9)):
        add(engine, key, [20, 21], max_tokens=max_tokens)
    for _ in range(5):
        executor.iterate()
    chunks = {chunk.key: (len(chunk.token_ids), chunk.finish_reason) for chunk in engine.step()}
    assert chunks == {1: (5, FinishReason.LENGTH), 2: (5, None)}
    executor.is_paced = False
    assert len(run(engine)[2].token_ids) == 4


def test_a_step_waits_a_little_and_not_long_for_a_batch_that_makes_nothing(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20])
    started_s = time.monotonic()
    assert engine.step() == []
    assert 0.001 < time.monotonic() - started_s < 0.2
    executor.iterate()
    assert len(engine.step()[0].token_ids) == 1


def test_a_request_that_fails_upstream_fails_alone(make: Maker) -> None:
    engine, executor = make()
    executor.failures[66] = "the prompt is\ncursed"
    add(engine, 1, [20, 21], max_tokens=20)
    add(engine, 2, [66, 21])
    outputs = run(engine)
    assert outputs[2].error == "[INTERNAL] TensorRT-LLM failed this request: the prompt is cursed"
    assert (outputs[1].error, len(outputs[1].token_ids)) == (None, 20)
    assert len(output_of(engine, [20, 21]).token_ids) == 8


def test_a_request_that_upstream_does_not_take_is_refused_and_leaves_nothing(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, executor = make()

    def refuse(*_arguments: object) -> None:
        raise ValueError("prompt length\nshould not exceed")

    with monkeypatch.context() as patch:
        patch.setattr(executor, "submit", refuse)
        with pytest.raises(RequestError, match="TensorRT-LLM refuses the request: prompt length should not exceed"):
            add(engine, 1, [20])
    assert not engine.has_work
    assert len(output_of(engine, [20]).token_ids) == 8


def test_a_dead_executor_makes_the_step_raise(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20])
    executor.die()
    with pytest.raises(ServerError, match="executor broke: a worker died") as death:
        run(engine)
    assert death.value.facts["reason"] == "executor_died"


def test_a_request_to_a_dead_executor_breaks_the_engine_and_is_no_fault_of_the_request(make: Maker) -> None:
    engine, executor = make()
    executor.die()
    with pytest.raises(RuntimeError, match="the executor is shut down"):
        add(engine, 1, [20])


@pytest.mark.parametrize("reason", ["timeout", "cancelled"])
def test_an_end_that_nobody_asked_for_is_an_error(make: Maker, reason: str) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20])
    (running,) = executor._running.values()
    executor._finish(running, [], reason)
    assert run(engine)[1].error == f"[INTERNAL] TensorRT-LLM ended this request: {reason}"


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("index", [2, 3])
def test_the_end_token_is_part_of_the_output_whether_upstream_keeps_it_or_not(
    make: Maker, is_kept: bool, index: int
) -> None:
    plain, _ = make()
    output = output_of(plain, [20, 21], max_tokens=9).token_ids
    engine, executor = make(**end_ids_of(plain, output[2], output[3]))
    executor.is_end_token_kept = is_kept
    add(engine, 1, [20, 21], max_tokens=9, end_id=None, min_tokens=index + 1)
    chunk = run(engine)[1]
    assert (chunk.token_ids, chunk.finish_reason) == (output[: index + 1], FinishReason.STOP)


def end_ids_of(engine: Engine, *end_ids: int) -> dict[str, object]:
    """Return settings for an engine of this provider with these end tokens."""
    if engine.info.provider == "tensorrt":
        return {"end_ids": list(end_ids)}
    model: Path = Path(Executor.created[-1].args.model)
    return {"dir": write_checkpoint(model.with_name("ends"), eos_token_id=list(end_ids))}


@pytest.mark.parametrize("are_of_all_tokens", [True, False])
def test_log_probabilities_are_of_the_chosen_tokens(make: Maker, are_of_all_tokens: bool) -> None:
    engine, executor = make(**log_probs_of(make))
    executor.are_log_probs_of_all_tokens = are_of_all_tokens
    chunk = output_of(engine, [20, 21], return_log_probs=True)
    assert chunk.log_probs == [-token / 1000 for token in chunk.token_ids]
    assert output_of(engine, [20, 21]).log_probs is None


def log_probs_of(make: Maker) -> dict[str, object]:
    """Return the setting that log probabilities need."""
    return {"is_gathering_generation_logits": True} if make()[0].info.provider == "tensorrt" else {}


def test_a_request_without_the_log_probabilities_that_it_asked_for_fails_alone(make: Maker) -> None:
    engine, executor = make(**log_probs_of(make))
    executor.is_without_log_probs = True
    add(engine, 1, [20, 21], return_log_probs=True, max_tokens=1000)
    add(engine, 2, [20, 21])
    outputs = run(engine)
    assert outputs[1].error is not None
    assert "gave 0 log probabilities for 1 tokens" in outputs[1].error
    assert len(outputs[2].token_ids) == 8
    while executor.batch.running:  # it does not go on upstream
        time.sleep(0.01)


@pytest.mark.parametrize(("row", "expected"), [(-0.5, -0.5), ({7: SimpleNamespace(logprob=-0.25)}, -0.25)])
def test_a_log_probability_is_a_float_or_one_of_several(row: object, expected: float) -> None:
    output = SimpleNamespace(token_ids=[7], logprobs=[row], finish_reason=None, request_perf_metrics=None)
    request = RunningRequest(1, (), sampling=SamplingParams(max_tokens=9, return_log_probs=True))
    new = request.read(SimpleNamespace(outputs=[output], finished=False))
    assert new is not None
    assert new.log_probs == [expected]


def test_a_token_that_is_not_among_those_told_ends_its_request_and_what_follows_is_dropped() -> None:
    output = SimpleNamespace(token_ids=[7], logprobs=[{8: None}], finish_reason=None, request_perf_metrics=None)
    request = RunningRequest(1, (), sampling=SamplingParams(max_tokens=9, return_log_probs=True))
    new = request.read(SimpleNamespace(outputs=[output], finished=False))
    assert new is not None
    assert "no log probability of token 7" in (new.error or "")
    assert not new.is_over, "upstream has still to be told"
    assert request.read(SimpleNamespace(outputs=[output], finished=False)) is None


def test_an_end_token_that_upstream_keeps_to_itself_has_no_log_probability(make: Maker) -> None:
    engine, executor = make(**log_probs_of(make))
    executor.is_end_token_kept = False
    output = output_of(engine, [20, 21]).token_ids
    chunk = output_of(engine, [20, 21], end_id=output[3], return_log_probs=True)
    assert chunk.token_ids == output[:4]
    assert chunk.log_probs is not None
    assert [math.isnan(value) for value in chunk.log_probs] == [False, False, False, True]


def test_what_upstream_measured_comes_with_the_last_chunk_in_times_of_the_system_clock(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    before_ns = time.time_ns()
    add(engine, 1, [20] * 40, max_tokens=2)
    executor.iterate()
    (first,) = engine.step()
    executor.iterate()
    (last,) = engine.step()
    assert first.perf is None
    assert engine.perf_of(1) is None, "it has ended"
    assert last.perf is not None
    perf = last.perf
    times = [perf.arrival_time_ns, perf.first_scheduled_time_ns, perf.first_token_time_ns, perf.last_token_time_ns]
    assert times == sorted(times)
    assert before_ns - 1_000_000 <= times[0] <= times[3] <= time.time_ns() + 1_000_000  # two clocks, read in turn
    assert (perf.kv_cache_alloc_total_blocks, perf.kv_cache_alloc_new_blocks, perf.kv_cache_reused_blocks) == (2, 2, 0)


def test_what_is_known_of_a_running_request_can_be_asked(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20] * 40)
    assert engine.perf_of(1) is None
    before_ns = time.time_ns()
    executor.iterate()
    engine.step()
    perf = engine.perf_of(1)
    assert perf is not None
    assert before_ns <= perf.last_token_time_ns <= time.time_ns()
    assert perf.kv_cache_alloc_total_blocks == 2
    engine.cancel(1)
    assert engine.perf_of(1) is None


def test_each_measure_is_read_by_its_name() -> None:
    timing = SimpleNamespace(**{f"{name}_time": timedelta(0) for name in ("arrival", "first_scheduled", "first_token")})
    timing.last_token_time = timedelta(seconds=2)
    timing.kv_cache_transfer_start = timing.kv_cache_transfer_end = timedelta(0)
    kv_cache = SimpleNamespace(num_total_allocated_blocks=1, num_new_allocated_blocks=2, num_reused_blocks=3)
    drafts = SimpleNamespace(total_accepted_draft_tokens=4, total_draft_tokens=5)
    perf = read_perf_metrics(
        SimpleNamespace(timing_metrics=timing, kv_cache_metrics=kv_cache, speculative_decoding=drafts),
        last_token_time_ns=0,
    )
    assert perf.last_token_time_ns - perf.arrival_time_ns == 2_000_000_000
    assert (perf.kv_cache_alloc_total_blocks, perf.kv_cache_alloc_new_blocks, perf.kv_cache_reused_blocks) == (1, 2, 3)
    assert (perf.total_accepted_draft_tokens, perf.total_draft_tokens) == (4, 5)


def test_a_cancelled_request_ends_upstream_and_says_nothing_more(make: Maker) -> None:
    engine, executor = make()
    add(engine, 1, [20], max_tokens=2000)
    add(engine, 2, [21], max_tokens=5)
    engine.cancel(1)
    outputs = run(engine)
    assert outputs.keys() == {2}
    assert executor.batch.num_free_blocks == executor.batch.num_blocks


def test_a_cancel_is_work_until_upstream_has_confirmed_it(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=20)
    executor.iterate()
    executor.iterate()
    engine.cancel(1)
    assert engine.step() == [], "two tokens were on their way"
    assert engine.has_work
    executor.iterate()
    assert engine.step() == []
    assert not engine.has_work


def test_without_requests_no_block_counts_as_used(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20] * 40)
    executor.iterate()
    engine.step()
    assert engine.stats().num_used_kv_blocks == 2
    (running,) = executor._running.values()
    executor._finish(running, [], "length")  # and no iteration follows that would tell
    engine.step()
    assert engine.stats().num_used_kv_blocks == 0


def test_the_kv_cache_is_as_large_as_upstream_says(make: Maker) -> None:
    engine, _ = make()
    assert (engine.info.num_kv_blocks, engine.info.kv_block_tokens) == (1024, 32)
    smaller, _ = make(num_kv_blocks=100)
    assert smaller.info.num_kv_blocks == smaller.stats().num_kv_blocks == 100


def test_stats_are_those_of_upstream(make: Maker) -> None:
    engine, executor = make(max_num_seqs=2)
    executor.is_paced = True
    before = engine.stats()
    assert (before.num_running, before.num_waiting, before.num_used_kv_blocks, before.num_steps) == (0, 0, 0, 1)
    for key in range(3):
        add(engine, key, [20] * 40)
    executor.iterate()
    engine.step()
    after = engine.stats()
    assert (after.num_running, after.num_waiting, after.num_used_kv_blocks, after.num_steps) == (2, 1, 4, 2)


def test_closing_ends_all_threads(make: Maker) -> None:
    before = set(threading.enumerate())
    engine, _ = make()
    add(engine, 1, [20], max_tokens=2000)
    engine.step()
    assert set(threading.enumerate()) > before
    make.opened.remove(engine)
    engine.close()
    assert set(threading.enumerate()) == before


# What does not come up


def test_an_engine_whose_first_token_fails_is_refused(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    def next_token(executor: Executor, running: object) -> None:
        executor._finish(running, [], "timeout")  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "_next_tokens", next_token)
    with pytest.raises(SpecError, match=r"the first token failed: .*TensorRT-LLM ended this request: timeout"):
        make()


def test_an_engine_that_tells_no_stats_is_refused(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_tell_stats", lambda *_: None)
    monkeypatch.setattr(trtllm_engine, "_FIRST_STATS_S", 0.1)
    threads = set(threading.enumerate())
    with pytest.raises(SpecError, match="loaded the model, but no stats came within 0 s"):
        make()
    assert set(threading.enumerate()) == threads


def test_an_engine_that_dies_at_its_first_token_is_refused(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "_next_tokens", lambda executor, _: executor.die())
    with pytest.raises(ServerError, match="executor broke: a worker died"):
        make()


# Reading stats


def test_parts_of_the_stats_that_are_missing_or_null_count_nothing() -> None:
    assert read_stats({}) == NO_STATS
    assert read_stats({"iter": 3, "kvCacheStats": None, "inflightBatchingStats": None}).num_iterations == 3


def test_stats_are_read_by_upstreams_names() -> None:
    row: dict[str, object] = {
        "iter": 7,
        "timestamp": "now",
        "kvCacheStats": {"maxNumBlocks": 90, "usedNumBlocks": 12, "freeNumBlocks": 78, "tokensPerBlock": 64},
        "inflightBatchingStats": {"numScheduledRequests": 5, "numPausedRequests": 1},
    }
    assert read_stats(row) == IterationStats(7, 5, 12, 90, 64, BatchStats(num_paused_requests=1))
