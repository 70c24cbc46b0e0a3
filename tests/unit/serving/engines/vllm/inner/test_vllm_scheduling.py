# SPDX-License-Identifier: Apache-2.0
"""Tests of who is computed first on vLLM's real CPU build, of long prompts in chunks, and of a KV cache in FP8."""

import statistics
from pathlib import Path

import pytest
from vllm_runs import Run, running

from serving.engines.seam.scheduling import Priority

PROMPT = list(range(30, 70))
STARTS = range(30, 2030, 100)  # of prompts


def order(run: Run) -> list[int]:
    """Return the keys of all requests, by their first token."""
    keys: dict[int, None] = {}
    while run.engine.has_work:
        keys |= {chunk.key: None for chunk in run.engine.step() if chunk.token_ids}
    return [*keys]


def test_one_rank_has_one_process_group_and_the_thread_of_one() -> None:
    with running() as run:
        names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
        assert names.count("gloo_tcp_loop") == 1
        assert len(run.ask(PROMPT, max_tokens=8).token_ids) == 8


def test_waiting_requests_begin_by_their_class_and_then_by_arrival() -> None:
    with running(max_num_seqs=1) as run:
        first = run.add(PROMPT)
        run.engine.step()
        batch, standard, premium, later = (
            run.add(PROMPT, priority=priority)
            for priority in (Priority.BATCH, Priority.STANDARD, Priority.PREMIUM, Priority.STANDARD)
        )
        assert order(run) == [first, premium, standard, later, batch]


def test_for_want_of_blocks_the_least_urgent_request_is_computed_again_and_counted() -> None:
    # 16 blocks of 32 tokens; four requests grow to 8 each.
    with running(num_kv_blocks=16, max_num_seqs=4) as run:
        alone = run.ask(PROMPT, max_tokens=200).token_ids
        classes = (Priority.BATCH, Priority.PREMIUM, Priority.STANDARD, Priority.BATCH)
        keys = [run.add(PROMPT, priority=priority, max_tokens=200) for priority in classes]
        answers = run.drain()
        preemptions = [answers[key].perf.num_preemptions for key in keys]  # type: ignore[union-attr]
        assert preemptions[1] == 0, "the premium one"
        assert sum(preemptions[0::3]) > 0, "one of the two of class batch"  # type: ignore[arg-type]
        assert run.engine.stats().num_preemptions == sum(preemptions)  # type: ignore[arg-type]
        assert [answers[key].token_ids for key in keys] == [alone] * 4
        assert run.engine.stats().num_used_kv_blocks == 0


def test_streams_go_on_in_each_step_of_a_long_prompt() -> None:
    with running(max_num_batched_tokens=64) as run:
        streams = [run.add(PROMPT[:8], max_tokens=100) for _ in range(3)]
        for _ in range(3):
            run.engine.step()
        long = run.add(list(range(100, 500)), max_tokens=1)
        num_steps = 0
        while True:
            chunks = {chunk.key: chunk for chunk in run.engine.step()}
            num_steps += 1
            assert set(streams) <= chunks.keys(), "each stream has a token of each step"
            if long in chunks:
                break
        assert num_steps == -(-400 // (64 - len(streams))), "as many chunks as there is room beside the streams"
        run.drain()


@pytest.mark.parametrize("kv_format", ["fp8", "fp8_e5m2"])
def test_a_kv_cache_in_fp8_holds_twice_as_many_tokens_and_nearly_the_same_answer(kv_format: str) -> None:
    sizes, log_probs = [], []
    for dtype in ("auto", kv_format):
        with running(kv_cache_dtype=dtype, num_kv_blocks=None, kv_cache_bytes=32 << 20, dtype="bfloat16") as run:
            sizes.append(run.engine.info.num_kv_blocks)
            asked = [run.ask(list(range(first, first + 40)), max_tokens=1, return_log_probs=True) for first in STARTS]
            log_probs.append(statistics.mean(answer.log_probs[0] for answer in asked))
    assert sizes[1] == pytest.approx(2 * sizes[0], abs=2)
    assert log_probs[1] == pytest.approx(log_probs[0], abs=0.3)
