# SPDX-License-Identifier: Apache-2.0
"""Tests of what our engine does about each behaviour of TensorRT-LLM (docs/trtllm_behaviour.md).

The symptoms themselves are in test_trtllm_symptoms.
"""

import json
import logging
import math
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trtllm_iteration_stats
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine
from lora_adapters import write_adapter
from test_trtllm_engine import Maker, add, output_of, run
from trtllm_behaviour import Executor
from trtllm_iteration_stats import IterationStats

from serving.engines.seam.base import CancelStats, FinishReason, GenerationRequest, SamplingParams
from serving.engines.tensorrt_llm import trtllm_cancels, trtllm_engine
from serving.engines.tensorrt_llm.trtllm_cancels import Cancels, Ending
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine
from serving.engines.tensorrt_llm.trtllm_outputs import RunningRequest
from trireme.base.errors import RequestError
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

pytestmark = pytest.mark.slow

IN_AN_ENGINE: list[dict[str, object]] = [
    {"method": "lookahead", "window_size": 5, "ngram_size": 4, "verification_set_size": 3},
    {"method": "medusa", "max_draft_len": 2, "num_heads": 2},
    {"method": "eagle", "max_draft_len": 3},
]
CONTRACT = CODE_ROOT / "docs/contract.md"


@pytest.fixture
def maker_of(tmp_path: Path) -> Iterator[Callable[..., Maker]]:
    makers: list[Maker] = []

    def get(provider: str, **build: object) -> Maker:
        write: Callable[..., Path] = {"tensorrt": write_engine, "pytorch": write_checkpoint}[provider]
        makers.append(Maker(provider, write(tmp_path / "model", **build)))
        return makers[-1]

    with fake_tensorrt_llm():
        yield get
    for maker in makers:
        for engine in maker.opened:
            engine.close()


@pytest.fixture(params=["tensorrt", "pytorch"])
def make(request: pytest.FixtureRequest, maker_of: Callable[..., Maker]) -> Maker:
    return maker_of(request.param)


@pytest.fixture
def make_tensorrt(maker_of: Callable[..., Maker]) -> Maker:
    return maker_of("tensorrt")


@pytest.fixture
def make_pytorch(maker_of: Callable[..., Maker]) -> Maker:
    return maker_of("pytorch")


def num_followed(engine: TrtLlmEngine) -> int:
    """Return how many requests the engine's event loop still waits for; the stats' own task is not one."""
    return len(engine._llm._loop._tasks) - 1


def wait_until(is_so: Callable[[], bool], engine: TrtLlmEngine) -> None:
    """Step until something is so."""
    deadline_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < deadline_s
        engine.step()
        time.sleep(0.001)


# C, how requests are cancelled


def test_a_request_that_waits_upstream_is_over_when_it_is_cancelled(make: Maker) -> None:
    engine, executor = make(max_num_seqs=1)
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=4)
    add(engine, 2, [21], max_tokens=4)
    executor.iterate()
    engine.step()
    engine.cancel(2)
    assert not engine.is_ending(2)
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 0)
    executor.is_paced = False
    assert len(run(engine)[1].token_ids) == 3
    assert not engine.has_work
    wait_until(lambda: num_followed(engine) == 0, engine)
    engine.step()
    assert engine.stats().cancels == CancelStats(num_waiting=1)


def test_many_that_wait_and_are_cancelled_keep_nobody_busy(make: Maker) -> None:
    engine, _ = make(max_num_seqs=2)
    for key in range(60):
        add(engine, key, [20 + key], max_tokens=30)
    for key in range(2, 60):
        engine.cancel(key)
    assert run(engine).keys() == {0, 1}
    wait_until(lambda: num_followed(engine) == 0, engine)
    cancels = engine.stats().cancels
    assert cancels is not None
    assert cancels.num_unconfirmed == 0
    assert len(output_of(engine, [20]).token_ids) == 8


def test_a_running_request_is_over_when_upstream_says_so(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20] * 40, max_tokens=200)
    executor.iterate()
    engine.step()
    engine.cancel(1)
    assert engine.has_work
    assert engine.is_ending(1)
    assert engine.stats().num_used_kv_blocks == 2, "upstream has not freed them"
    executor.iterate()
    engine.step()
    assert not engine.has_work
    assert not engine.is_ending(1)
    assert engine.stats().cancels == CancelStats(num_confirmed=1)


def test_a_cancel_that_upstream_loses_is_written_off_counted_and_logged_once(
    make: Maker, caplog: pytest.LogCaptureFixture
) -> None:
    engine, executor = make()
    executor.deaf = {20}
    add(engine, 1, [20], max_tokens=2000)
    add(engine, 2, [20], max_tokens=2000)
    wait_until(lambda: engine.stats().num_used_kv_blocks > 0, engine)
    engine.cancel(1)
    engine.cancel(2)
    with caplog.at_level(logging.WARNING, "trireme.engine"):
        wait_until(lambda: not engine.has_work, engine)
    assert engine.stats().cancels == CancelStats(num_unconfirmed=2)
    # An exporter of another test's may still be complaining.
    logged = [record.message.partition(" within ")[0] for record in caplog.records if record.name == "trireme.engine"]
    assert logged == ["TensorRT-LLM has not confirmed the cancel of a request"]
    assert num_followed(engine) == 0
    assert engine.stats().num_used_kv_blocks > 0, "it may hold them still"
    assert len(output_of(engine, [21]).token_ids) == 8, "the engine goes on"


def cancelled(cancels: Cancels, ending: Ending = Ending.STOPPING) -> RunningRequest:
    request = RunningRequest(1, (), SamplingParams(max_tokens=1))
    cancels.begin(request, ending, 100.0)
    return request


@pytest.mark.parametrize(
    ("looks", "is_late"),
    [
        ([(129.9, 3)], False),
        ([(130.0, 3)], True),
        ([(100.1, 3), (100.2, 500)], False),  # stats may still be of the time before the cancel
        ([(100.6, 500), (100.7, 563)], False),
        ([(100.6, 500), (100.8, 564)], True),
    ],
    ids=["in time", "30 s", "late stats", "63 iterations", "64 iterations"],
)
def test_a_cancel_is_bounded_in_time_and_in_iterations(looks: list[tuple[float, int]], is_late: bool) -> None:
    assert (trtllm_cancels.WRITE_OFF_S, trtllm_cancels.WRITE_OFF_ITERATIONS) == (30.0, 64)
    cancels = Cancels()
    request = cancelled(cancels)
    late = [cancels.overdue(now_s, num_iterations) for now_s, num_iterations in looks][-1]
    assert late == ([request] if is_late else [])
    assert cancels.are_work is not is_late
    cancels.confirm(request)  # a word that comes after all counts for nothing
    assert cancels.stats() == (CancelStats(num_unconfirmed=1) if is_late else CancelStats(num_confirmed=1))


@pytest.mark.parametrize("ending", [Ending.WAITING, Ending.RUNNING_ON])
def test_what_upstream_need_not_confirm_is_never_written_off(ending: Ending) -> None:
    cancels = Cancels()
    cancelled(cancels, ending)
    assert cancels.overdue(1e9, 10**9) == cancels.overdue(2e9, 2 * 10**9) == []
    assert cancels.are_work is (ending is Ending.RUNNING_ON)


def test_a_cancelled_request_with_streamed_log_probabilities_runs_on_in_a_compiled_engine(
    make_tensorrt: Maker,
) -> None:
    engine, executor = make_tensorrt(is_gathering_generation_logits=True)
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=6, return_log_probs=True)
    add(engine, 2, [21], max_tokens=4)
    executor.iterate()
    engine.step()
    engine.cancel(1)
    assert engine.is_ending(1)
    executor.is_paced = False
    outputs = run(engine)
    assert outputs.keys() == {2}
    assert len(outputs[2].token_ids) == 3
    assert executor.death is None
    assert engine.stats().cancels == CancelStats(num_ran_on=1)
    assert not engine.has_work


def test_a_cancelled_request_with_log_probabilities_ends_at_once_on_pytorch(make_pytorch: Maker) -> None:
    engine, executor = make_pytorch()
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=2000, return_log_probs=True)
    executor.iterate()
    engine.step()
    engine.cancel(1)
    executor.iterate()
    engine.step()
    assert engine.stats().cancels == CancelStats(num_confirmed=1)


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
def test_a_request_whose_output_cannot_be_read_is_ended_upstream_where_that_does_no_harm(
    maker_of: Callable[..., Maker], provider: str
) -> None:
    settings = {"is_gathering_generation_logits": True} if provider == "tensorrt" else {}
    engine, executor = maker_of(provider)(**settings)
    executor.is_paced = executor.is_without_log_probs = True
    add(engine, 1, [20], max_tokens=5, return_log_probs=True)
    executor.iterate()
    (chunk,) = engine.step()
    assert "gave 0 log probabilities for 1 tokens" in (chunk.error or "")
    executor.iterate()
    engine.step()
    assert engine.has_work is (provider == "tensorrt"), "it runs on there"
    executor.is_paced = False
    wait_until(lambda: not engine.has_work, engine)
    outcome = {"tensorrt": CancelStats(num_ran_on=1), "pytorch": CancelStats(num_confirmed=1)}[provider]
    assert engine.stats().cancels == outcome
    assert executor.death is None


@pytest.mark.parametrize("provider", ["tensorrt", "pytorch"])
def test_a_cancelled_prefill_for_another_server_runs_on_and_leaves_no_blocks(
    maker_of: Callable[..., Maker], provider: str
) -> None:
    overlap = {"is_overlap_scheduler": False} if provider == "pytorch" else {}
    engine, executor = maker_of(provider)(cache_transceiver={}, max_num_batched_tokens=64, **overlap)
    executor.is_paced = True
    add(engine, 1, [20] * 200, is_context_only=True)
    executor.iterate()
    engine.cancel(1)
    executor.is_paced = False
    wait_until(lambda: not engine.has_work, engine)
    assert executor.batch.num_free_blocks == executor.batch.num_blocks
    assert engine.stats().cancels == CancelStats(num_ran_on=1)


def test_a_cancel_in_a_prefill_of_its_own_server_is_told_to_upstream(make: Maker) -> None:
    engine, executor = make(max_num_batched_tokens=64)
    executor.is_paced = True
    add(engine, 1, [20] * 400)
    executor.iterate()
    engine.cancel(1)
    executor.iterate()
    engine.step()
    assert engine.stats().cancels == CancelStats(num_confirmed=1)
    assert executor.batch.num_free_blocks == executor.batch.num_blocks


# D: what would end everybody


@pytest.mark.parametrize("speculation", ["mtp", "eagle3"])
@pytest.mark.parametrize("field", ["return_log_probs", "return_generation_logits", "return_context_logits"])
def test_what_a_sampler_inside_the_model_does_not_survive_is_refused_by_name(
    make_pytorch: Maker, speculation: str, field: str, tmp_path: Path
) -> None:
    drafts: dict[str, object] = {"method": speculation}
    if speculation == "eagle3":
        drafts |= {"dir": tmp_path, "max_draft_len": 2}
    engine, executor = make_pytorch(speculation=drafts)
    with pytest.raises(RequestError, match=rf"{field} \(True\) is not supported .*engine.speculation") as refusal:
        add(engine, 1, [20], **{field: True})
    assert (refusal.value.facts["field"], refusal.value.facts["provider"]) == (field, "pytorch")
    assert executor.death is None
    for others in (
        {"method": "ngram", "max_draft_len": 2, "max_matching_ngram_size": 2},
        {"method": "eagle3", "dir": tmp_path, "max_draft_len": 2, "is_one_model": False},
    ):
        two_models, _ = make_pytorch(speculation=others)
        assert output_of(two_models, [20], return_log_probs=True).log_probs


@pytest.mark.parametrize(
    ("field", "value"), [("return_log_probs", True), ("return_generation_logits", True), ("beam_width", 2)]
)
@pytest.mark.parametrize("drafts", IN_AN_ENGINE, ids=lambda one: one["method"])
def test_logits_and_beams_beside_drafts_in_a_compiled_engine_are_refused_by_name(
    maker_of: Callable[..., Maker], drafts: dict[str, object], field: str, value: Any
) -> None:
    settings = {"is_gathering_generation_logits": True, "max_beam_width": 2, "speculation": drafts}
    engine, executor = maker_of("tensorrt", max_beam_width=2)(**settings)
    add(engine, 1, [20], max_tokens=30)
    message = rf"{field} \({value}\) is not supported .*none of engine.speculation"
    with pytest.raises(RequestError, match=message) as refusal:
        add(engine, 2, [21], **{field: value})
    assert (refusal.value.facts["field"], refusal.value.facts["provider"]) == (field, "tensorrt")
    assert len(run(engine)[1].token_ids) == 30
    assert executor.death is None


GUIDED: dict[str, object] = {"guided_decoding_backend": "xgrammar", "tokenizer_dir": "tokenizer"}


@pytest.mark.parametrize(
    ("guide_type", "bad", "good"),
    [("json_schema", "{", '{"type": "object"}'), ("regex", "a(", "a+"), ("ebnf_grammar", "a", "root ::= 'a'")],
)
def test_a_guide_that_does_not_compile_is_refused_by_name_and_the_others_go_on(
    make: Maker, guide_type: str, bad: str, good: str
) -> None:
    engine, executor = make(**GUIDED)
    add(engine, 1, [20], max_tokens=30)
    for _ in range(2):
        with pytest.raises(
            RequestError, match=rf"the guide is no {guide_type} that compiles: .*; send another"
        ) as refusal:
            add(engine, 2, [21], guide_type=guide_type, guide=bad)
        assert refusal.value.facts["field"] == "guided_decoding_guide"
    add(engine, 3, [22], guide_type=guide_type, guide=good)
    outputs = run(engine)
    assert (len(outputs[1].token_ids), outputs[3].error) == (30, None)
    assert executor.death is None


def test_a_guide_beside_beams_is_refused_on_a_compiled_engine(maker_of: Callable[..., Maker]) -> None:
    engine, _ = maker_of("tensorrt", max_beam_width=2)(max_beam_width=2, end_ids=[2], **GUIDED)
    with pytest.raises(RequestError, match=r"guide_type \(regex\) cannot be honoured .*first beam alone") as refusal:
        add(engine, 1, [20], beam_width=2, guide_type="regex", guide="a+")
    assert refusal.value.facts["field"] == "guide_type"


def test_beams_with_several_end_tokens_are_refused_on_a_compiled_engine(maker_of: Callable[..., Maker]) -> None:
    engine, executor = maker_of("tensorrt", max_beam_width=2)(max_beam_width=2)
    assert engine.info.end_ids == (2, 3)
    with pytest.raises(RequestError, match=r"end_id \(\[2, 3\]\) cannot be honoured .*send end_id") as refusal:
        add(engine, 1, [20], beam_width=2, end_id=None)
    assert refusal.value.facts["field"] == "end_id"
    add(engine, 2, [20], beam_width=2, end_id=2)
    assert run(engine)[2].finish_reason is not None
    assert executor.death is None


# E: limits that upstream lowers


def test_a_sequence_is_as_long_as_the_kv_cache_that_upstream_has(make: Maker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "trireme.engine"):
        engine, executor = make(num_kv_blocks=2)
    # 64 tokens; a compiled engine keeps one of its two blocks for the output, of which one token is sure.
    longest = 64 if engine.info.provider == "pytorch" else 33
    assert engine.info.max_seq_len == executor.max_seq_len == longest
    assert "engine.max_seq_len (2048)" in caplog.text
    with pytest.raises(RequestError, match=rf"10 prompt tokens .* max_tokens 500 > max_seq_len {longest}"):
        add(engine, 1, [20] * 10, max_tokens=500)
    assert len(output_of(engine, [20] * 10, max_tokens=longest - 10).token_ids) == longest - 10


BEAMS_ON = {
    "tensorrt": ({"max_beam_width": 3}, {}),
    "pytorch": ({}, {"sampler": "trtllm", "is_overlap_scheduler": False}),
}


@pytest.mark.parametrize(("provider", "longest"), [("tensorrt", 21 * 32), ("pytorch", 20 * 32)])
def test_a_search_is_as_long_as_upstream_gives_every_beam_room_for(
    maker_of: Callable[..., Maker], provider: str, longest: int
) -> None:
    build, settings = BEAMS_ON[provider]
    engine, executor = maker_of(provider, **build)(num_kv_blocks=64, max_beam_width=3, max_seq_len=1024, **settings)
    # 21 blocks for each beam. PyTorch takes one of them off where it shortens; on a compiled engine a search whose
    # prompt shares no block would wait for more for ever.
    assert engine.info.max_seq_len == longest <= executor.max_seq_len
    add(engine, 1, [20] * 3, max_tokens=longest - 3, beam_width=3)
    assert len(run(engine)[1].token_ids) == longest - 3
    with pytest.raises(RequestError, match=f"max_seq_len {longest}"):
        add(engine, 2, [20] * 3, max_tokens=longest - 2, beam_width=3)


# F: beams, log probabilities, logits, speculation


def test_an_engine_on_pytorch_serves_the_full_width_of_beams_alone(make_pytorch: Maker) -> None:
    engine, executor = make_pytorch(max_beam_width=3, sampler="trtllm", is_overlap_scheduler=False)
    for width in (1, 2, 4):
        with pytest.raises(RequestError, match=rf"beam_width \({width}\) .* allowed: 3 alone") as refusal:
            add(engine, width, [20], beam_width=width)
        assert refusal.value.facts["field"] == "beam_width"
    add(engine, 9, [20], beam_width=3)
    assert len(run(engine)[9].token_ids) == 8
    assert [call["sampling_params"].n for call in executor.calls] == [3, 3], "the first token at start as well"
    rows = [line for line in CONTRACT.read_text().splitlines() if line.startswith("| `beam_width`")]
    (row,) = [row for row in rows if row.count(" | ") > 3]  # of the table of tensors; that of limits is another
    assert "that width alone" in row.split(" | ")[4], "clients are told in docs/contract.md"


def beams_of(engine: TrtLlmEngine, **sampling: object) -> list[list[float] | None]:
    """Return the log probabilities of each beam."""
    params = SamplingParams(max_tokens=4, beam_width=2, end_id=-1, **sampling)  # type: ignore[arg-type]
    engine.add(GenerationRequest(key=1, input_ids=[20, 21], sampling=params))
    while True:
        for chunk in engine.step():
            assert chunk.extras is not None
            assert chunk.extras.beams is not None
            for beam in chunk.extras.beams:
                assert beam.log_probs is None or len(beam.log_probs) == len(beam.token_ids)
            return [beam.log_probs for beam in chunk.extras.beams]


def test_log_probabilities_of_beams_are_each_beams_own_or_refused(
    maker_of: Callable[..., Maker], tmp_path: Path
) -> None:
    compiled, _ = maker_of("tensorrt", max_beam_width=2)(max_beam_width=2, is_gathering_generation_logits=True)
    with pytest.raises(RequestError, match=r"return_log_probs \(True\) .*the best beam's for every beam"):
        beams_of(compiled, return_log_probs=True)
    assert beams_of(compiled) == [None, None]
    write_checkpoint(tmp_path / "checkpoint")
    make = Maker("pytorch", tmp_path / "checkpoint")
    engine, _ = make(max_beam_width=2, sampler="trtllm", is_overlap_scheduler=False)
    try:
        best, second = beams_of(engine, return_log_probs=True)
    finally:
        engine.close()
    assert best != second


def test_logits_come_from_the_gpu_without_the_padding(maker_of: Callable[..., Maker]) -> None:
    make = maker_of("tensorrt", world_size=3, tp_size=3, gather_context_logits=True)
    gathering = {"is_gathering_generation_logits": True, "is_gathering_context_logits": True}
    engine, _ = make(tp_size=3, is_block_reuse=False, **gathering)
    engine.add(
        GenerationRequest(
            key=1,
            input_ids=[20, 21, 22],
            sampling=SamplingParams(max_tokens=2, end_id=-1, return_generation_logits=True, return_context_logits=True),
        )
    )
    chunks = []
    while engine.has_work:
        chunks += engine.step()
    (chunk,) = chunks
    assert chunk.extras is not None
    for logits, num_tokens in ((chunk.extras.generation_logits, 2), (chunk.extras.context_logits, 3)):
        assert logits is not None
        assert logits.shape == (num_tokens, 4096)
        assert np.isfinite(logits.array()).all()


def test_a_search_that_leaves_a_beam_unfinished_fails_alone(maker_of: Callable[..., Maker]) -> None:
    engine, executor = maker_of("tensorrt", max_beam_width=2)(max_beam_width=2)
    executor.unfinished_beams = {66}
    add(engine, 1, [66], beam_width=2)
    add(engine, 2, [20], max_tokens=30)
    outputs = run(engine)
    assert "failed this request: Unknown finish reason" in (outputs[1].error or "")
    assert (outputs[2].finish_reason, len(outputs[2].token_ids)) == (FinishReason.LENGTH, 30)
    assert len(output_of(engine, [20]).token_ids) == 8


def test_a_response_that_upstream_cannot_read_ends_its_request_there_too(make: Maker) -> None:
    engine, executor = make()
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=2000)
    executor.iterate()
    engine.step()
    (running,) = executor._running.values()
    executor._deliver(running, executor._raiser(AssertionError("as many log probabilities as tokens")))
    assert "as many log probabilities" in (run(engine)[1].error or "")
    assert running.is_aborted
    executor.tick()
    assert executor.batch.num_free_blocks == executor.batch.num_blocks


def test_several_tokens_of_one_output_keep_their_log_probabilities(make_pytorch: Maker) -> None:
    plain, _ = make_pytorch()
    expected = output_of(plain, [20, 21], max_tokens=23, return_log_probs=True)
    drafts = {"method": "ngram", "max_draft_len": 3, "max_matching_ngram_size": 2}
    engine, executor = make_pytorch(speculation=drafts)
    executor.is_paced = True
    add(engine, 1, [20, 21], max_tokens=23, return_log_probs=True)
    token_ids: list[int] = []
    log_probs: list[float] = []
    sizes = []
    while engine.has_work:
        executor.iterate()
        for chunk in engine.step():
            assert chunk.log_probs is not None
            assert len(chunk.log_probs) == len(chunk.token_ids)
            sizes.append(len(chunk.token_ids))
            token_ids += chunk.token_ids
            log_probs += chunk.log_probs
    assert max(sizes) > 1
    assert (token_ids, log_probs) == (expected.token_ids, expected.log_probs)
    assert not any(math.isnan(value) for value in log_probs)


# G, how upstream schedules, and what it tells


def test_a_request_whose_end_is_not_reserved_waits_and_is_counted_so(make: Maker) -> None:
    engine, executor = make(num_kv_blocks=8)
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=180)
    add(engine, 2, [21], max_tokens=180)
    executor.iterate()
    engine.step()
    assert (engine.stats().num_running, engine.stats().num_waiting) == (1, 1)
    assert engine.stats().num_used_kv_blocks == 1, "reserved is not used"
    executor.is_paced = False
    assert [len(output.token_ids) for output in run(engine).values()] == [179, 180]


def test_stats_go_on_after_a_pause_longer_than_upstreams_patience(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trtllm_iteration_stats, "PAUSE_S", 0.2)
    engine, _ = make()
    before = engine.stats().num_steps
    time.sleep(2.3)  # its own iterator ends after two seconds
    add(engine, 1, [20], max_tokens=400)
    wait_until(lambda: engine.stats().num_steps > before + 100, engine)


def test_upstream_is_asked_for_stats_once_after_the_first_request_and_an_idle_engine_asks_nothing(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, float | None]] = []
    read = IterationStats.read

    def noting(stats: IterationStats, timeout: float | None) -> AsyncIterator[dict[str, Any]]:
        asked.append((stats._is_begun, timeout))
        return read(stats, timeout)

    monkeypatch.setattr(IterationStats, "read", noting)
    engine, _ = make()
    assert len(output_of(engine, [20]).token_ids) == 8
    time.sleep(0.5)
    assert asked == [(True, None)]
    started_s = time.monotonic()
    assert engine.step() == []
    assert time.monotonic() - started_s < 0.05


def test_a_prompt_that_no_step_could_take_is_refused_by_name(make: Maker) -> None:
    engine, _ = make(is_chunked_prefill=False, max_num_batched_tokens=64)
    with pytest.raises(RequestError, match="65 prompt tokens > 64") as error:
        add(engine, 1, [20] * 65)
    assert error.value.facts["field"] == "input_ids"
    assert len(output_of(engine, [20] * 64).token_ids) == 8


@pytest.mark.parametrize("policy", ["max_utilization", "static_batch"])
def test_a_stream_that_a_pause_would_cut_is_refused_by_name(make_tensorrt: Maker, policy: str) -> None:
    limits: dict[str, object] = {"is_chunked_prefill": False, "max_num_batched_tokens": 64}
    engine, executor = make_tensorrt(capacity_scheduler_policy=policy, **limits)
    with pytest.raises(RequestError, match=f"25 at most after 40 prompt tokens; .*{policy} may pause") as error:
        add(engine, 1, [20] * 40, max_tokens=26)
    assert (error.value.facts["field"], error.value.facts["value"]) == ("max_tokens", 26)
    assert len(executor.calls) == 1, "the first token at start"
    assert len(output_of(engine, [20] * 40, max_tokens=25).token_ids) == 25
    never_paused, _ = make_tensorrt(**limits)
    assert len(output_of(never_paused, [20] * 40, max_tokens=60).token_ids) == 60
    in_chunks, _ = make_tensorrt(capacity_scheduler_policy=policy, max_num_batched_tokens=64)
    assert len(output_of(in_chunks, [20] * 40, max_tokens=60).token_ids) == 60


def test_a_request_of_another_beam_width_waits_for_its_turn(maker_of: Callable[..., Maker]) -> None:
    engine, executor = maker_of("tensorrt", max_beam_width=2)(max_beam_width=2)
    executor.is_paced = True
    add(engine, 1, [20], max_tokens=90, beam_width=2)
    add(engine, 2, [21], max_tokens=4)
    add(engine, 3, [22], max_tokens=4)
    made: dict[int, int] = {}
    for _ in range(80):
        executor.iterate()
        for chunk in engine.step():
            made[chunk.key] = made.get(chunk.key, 0) + len(chunk.token_ids)
    assert made == {2: 1, 3: 1}, "its prefill's, and no turn after that"
    engine.cancel(3)
    executor.iterate()
    engine.step()
    assert not engine.is_ending(3), "a cancel needs no turn"
    executor.is_paced = False
    left = run(engine)
    assert {key: chunk.error for key, chunk in left.items()} == {1: None, 2: None}
    assert made[2] + len(left[2].token_ids) == 4
    assert engine.stats().cancels == CancelStats(num_confirmed=1)


def test_what_cannot_be_sent_to_upstreams_process_fails_alone_and_by_name(
    make: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, executor = make()
    add(engine, 1, [20], max_tokens=50)
    arguments_of = engine._words.call_arguments
    with monkeypatch.context() as patch:
        patch.setattr(
            engine._words, "call_arguments", lambda request: arguments_of(request) | {"scheduling_params": lambda: None}
        )
        with pytest.raises(RequestError, match="scheduling_params cannot be sent to TensorRT-LLM's process") as error:
            add(engine, 2, [21])
    assert error.value.facts["field"] == "scheduling_params"
    assert len(run(engine)[1].token_ids) == 50
    assert executor.death is None
    wait_until(lambda: num_followed(engine) == 0, engine)


def test_an_error_that_is_not_of_the_request_goes_through(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, executor = make()

    def broken(*_arguments: object) -> None:
        raise AttributeError("a mistake of somebody's")

    monkeypatch.setattr(executor, "submit", broken)
    with pytest.raises(AttributeError, match="a mistake"):
        add(engine, 1, [20])
    assert isinstance(executor, Executor)


# H: LoRA adapters, which upstream keeps by number


MODULES = ["attn_q", "attn_k", "attn_v"]
LORA_BUILD: dict[str, object] = {
    "plugin_config": {"tokens_per_block": 32, "lora_plugin": "auto"},
    "lora_config": {"lora_target_modules": MODULES, "max_lora_rank": 64},
}


@pytest.fixture(params=["tensorrt", "pytorch"])
def make_with_adapters(
    request: pytest.FixtureRequest, maker_of: Callable[..., Maker], tmp_path: Path
) -> Callable[..., tuple[TrtLlmEngine, Executor]]:
    """Return a maker of engines with adapters in `tmp_path / "lora"`."""
    maker = maker_of(request.param, **(LORA_BUILD if request.param == "tensorrt" else {}))

    def make(settings: dict[str, object] | None = None, **lora: object) -> tuple[TrtLlmEngine, Executor]:
        return maker(lora={"dir": tmp_path / "lora", "target_modules": MODULES} | lora, **(settings or {}))

    return make


def test_each_answer_is_of_the_weights_that_its_adapter_has_now(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path
) -> None:
    engine, executor = make_with_adapters()
    outputs = [output_of(engine, [20, 21]).token_ids]
    for seed, name in ((1, "7"), (2, "legal"), (3, "legal")):
        shutil.rmtree(tmp_path / "lora" / name, ignore_errors=True)
        write_adapter(tmp_path / "lora" / name, seed=seed)
        named = {"lora_task_id": 7} if name == "7" else {"lora_name": name}
        outputs += [output_of(engine, [20, 21], **named).token_ids for _ in range(2)]
    base, *of_adapters = [tuple(output) for output in outputs]
    assert [of_adapters[0], of_adapters[2], of_adapters[4]] == [of_adapters[1], of_adapters[3], of_adapters[5]]
    assert len({base, *of_adapters}) == 4, "upstream keeps the first weights of a number"
    assert output_of(engine, [20, 21]).token_ids == list(base)
    assert executor.death is None


def test_an_adapter_that_upstream_cannot_read_fails_alone_and_is_not_asked_for_again(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path
) -> None:
    engine, executor = make_with_adapters()
    add(engine, 1, [20], max_tokens=300)
    folder = write_adapter(tmp_path / "lora/legal")
    num_calls = len(executor.calls)
    with pytest.MonkeyPatch.context() as patch:  # we have looked at the file, and upstream finds it otherwise
        patch.setattr(executor.adapters, "enqueue", missing)
        for _ in range(2):
            with pytest.raises(
                RequestError, match=r"lora_name \(legal\): TensorRT-LLM could not load this adapter: FileNotF"
            ):
                add(engine, 2, [21], lora_name="legal")
            assert len(executor.calls) == num_calls + 1
    write_adapter(folder, seed=2)
    assert len(run(engine)[1].token_ids) == 300
    assert len(output_of(engine, [21], lora_name="legal").token_ids) == 8


def missing(_request: object) -> Any:
    raise FileNotFoundError("adapter_config.json")


def test_an_adapter_that_the_disk_takes_long_for_is_waited_for_as_long_as_the_watchdog(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, executor = make_with_adapters({"watchdog_s": 20.0})
    write_adapter(tmp_path / "lora/large")
    enqueue = executor.adapters.enqueue

    def read_slowly(request: Any) -> Any:
        time.sleep(0.5)
        return enqueue(request)

    monkeypatch.setattr(executor.adapters, "enqueue", read_slowly)
    monkeypatch.setattr(trtllm_engine, "ANSWERS_S", 0.2)
    assert len(output_of(engine, [20], lora_name="large").token_ids) == 8


def test_an_adapter_of_another_model_is_refused_and_the_others_go_on(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path
) -> None:
    config = json.loads((tmp_path / "model/config.json").read_text())
    sizes = {"num_hidden_layers": 2, "hidden_size": 32}
    config |= {"pretrained_config": config["pretrained_config"] | sizes} if "pretrained_config" in config else sizes
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    engine, executor = make_with_adapters()
    add(engine, 1, [20], max_tokens=100)
    write_adapter(tmp_path / "lora/small")
    with pytest.raises(
        RequestError, match=r"is for hidden states of 16, and the engine's model has 32; .* another one"
    ):
        add(engine, 2, [21], lora_name="small")
    assert len(run(engine)[1].token_ids) == 100
    assert executor.death is None


def test_an_engine_that_has_died_is_not_taken_for_a_bad_adapter(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path
) -> None:
    engine, executor = make_with_adapters()
    write_adapter(tmp_path / "lora/legal")
    output_of(engine, [20], lora_name="legal")
    executor.die()
    with pytest.raises(RuntimeError, match="the executor is shut down"):
        add(engine, 1, [20], lora_name="legal")


def test_an_adapter_that_goes_while_it_is_named_is_refused_by_name(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, _ = make_with_adapters()
    write_adapter(tmp_path / "lora/legal")

    def refuse(**_arguments: object) -> Any:
        raise ValueError("lora_path (/x) does not exist.")  # LoRARequest.__post_init__ of 1.2

    monkeypatch.setattr(engine._words, "_upstream", replace(engine._words._upstream, make_lora_request=refuse))
    with pytest.raises(
        RequestError, match=r"lora_name \(legal\) has been taken out of engine\.lora\.dir just now"
    ) as found:
        add(engine, 1, [20], lora_name="legal")
    assert found.value.facts["field"] == "lora_name"


def trireme_adapters(*args: object) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command("adapters", [str(arg) for arg in args])
    assert ended.value.code in (0, None)


def test_an_adapter_that_is_unloaded_while_its_requests_wait_is_served_to_their_end(
    make_with_adapters: Callable[..., tuple[TrtLlmEngine, Executor]], tmp_path: Path
) -> None:
    deployment = tmp_path / "mine.yaml"
    lora = f"{{dir: {tmp_path}/lora, target_modules: [{', '.join(MODULES)}]}}"
    deployment.write_text(f"name: mine\ntokenizer: {{dir: m}}\nengine: {{provider: pytorch, dir: m, lora: {lora}}}\n")
    for name, seed in (("one", 1), ("other", 2)):
        trireme_adapters("load", write_adapter(tmp_path / name, seed=seed), "--deployment", deployment)
    engine, executor = make_with_adapters({"max_num_seqs": 1}, max_host_adapters=1, max_device_adapters=1)
    expected = output_of(engine, [33], lora_name="one").token_ids
    add(engine, 2, [30], max_tokens=40)
    add(engine, 3, [31], lora_name="other")  # evicts the first
    add(engine, 4, [33], lora_name="one")  # in the cache now, and not any more when its turn comes
    trireme_adapters("unload", "one", "--deployment", deployment)
    outputs = run(engine)
    assert outputs[4].token_ids == expected
    assert {output.error for output in outputs.values()} == {None}
    assert executor.death is None
    with pytest.raises(RequestError, match=r"lora_name \(one\) is no adapter"):
        add(engine, 5, [33], lora_name="one")


def test_an_adapter_too_many_for_the_host_cache_fails_alone_and_says_what_to_raise(
    maker_of: Callable[..., Maker], tmp_path: Path
) -> None:
    lora = {"dir": tmp_path / "lora", "target_modules": MODULES, "max_host_adapters": 1}
    engine, executor = maker_of("tensorrt", **LORA_BUILD)(lora=lora)
    for name, seed in (("one", 1), ("other", 2)):
        write_adapter(tmp_path / "lora" / name, seed=seed)
    add(engine, 1, [20], max_tokens=60, lora_name="one")
    wait_until(lambda: engine.stats().num_running == 1, engine)
    add(engine, 2, [21], lora_name="other")
    outputs = run(engine)
    assert "than engine.lora.max_host_adapters holds: raise it" in (outputs[2].error or "")
    assert outputs[1].error is None
    assert executor.death is None
