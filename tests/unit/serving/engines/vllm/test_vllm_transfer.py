# SPDX-License-Identifier: Apache-2.0
"""KV cache from one real engine of vLLM to another, each in a process of its own as the server starts it."""

import os
import random
import time
from collections.abc import Iterator

import msgspec
import psutil
import pytest
from engine_elsewhere import EngineElsewhere
from process_words import words_of
from vllm_environment import WHY_NOT, is_there, vllm_spec
from vllm_runs import Answer, Run

from serving.engines.seam.base import FinishReason

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not is_there(), reason=WHY_NOT),
]

LEASE_S = 6
BLOCK_TOKENS = 32


def engine_of(role: str) -> dict[str, object]:
    spec = vllm_spec(
        kv_transfer={"role": role, "host": "127.0.0.1", "lease_s": LEASE_S}, max_seq_len=1024, num_kv_blocks=256
    )
    return spec.model_dump(mode="json", exclude_unset=True)


@pytest.fixture(scope="module")
def prefill() -> Iterator[Run]:
    engine = EngineElsewhere(engine_of("prefill"))
    yield Run(engine)
    engine.close()


@pytest.fixture(scope="module")
def decode() -> Iterator[Run]:
    engine = EngineElsewhere(engine_of("decode"))
    yield Run(engine)
    engine.close()


def prompt_of(num_tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(1, 4000), k=num_tokens)


def handed_over(prefill: Run, prompt: list[int], **sampling: object) -> bytes:
    key = prefill.add(prompt, is_context_only=True, **sampling)
    for _ in range(1000):
        for chunk in prefill.engine.step():
            if chunk.key == key and chunk.finish_reason is not None:
                assert chunk.error is None
                assert chunk.extras is not None
                assert chunk.extras.context_phase_params is not None
                return chunk.extras.context_phase_params
    raise AssertionError("the prompt was not computed")


def asked(decode: Run, prompt: list[int], **sampling: object) -> Answer:
    key = decode.add(prompt, **sampling)
    answer = Answer()
    while answer.finish_reason is None and answer.error is None:
        for chunk in decode.engine.step():
            assert chunk.key == key
            answer.token_ids += chunk.token_ids
            answer.finish_reason, answer.error, answer.perf = chunk.finish_reason, chunk.error, chunk.perf
    return answer


def wait_until_free(run: Run, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    while run.engine.stats().num_used_kv_blocks:
        assert time.monotonic() < deadline_s, run.engine.stats()
        run.engine.step()


def test_an_answer_is_that_of_one_engine_and_no_block_is_left(prefill: Run, decode: Run) -> None:
    for seed, num_tokens in enumerate([1, 2, 31, 32, 33, 64, 100, 129, 500, 900]):
        prompt = prompt_of(num_tokens, seed)
        phase = handed_over(prefill, prompt)
        found = asked(decode, prompt, context_phase_params=phase)
        assert found.finish_reason is FinishReason.LENGTH
        assert found.perf is not None
        assert found.perf.num_cached_tokens == 0  # the other engine had none of it, either
        if num_tokens > BLOCK_TOKENS:  # of less vLLM counts nothing as come from elsewhere
            assert found.perf.kv_cache_transfer_ms is not None
            assert 0 < found.perf.kv_cache_transfer_ms < 10_000
        wait_until_free(prefill, LEASE_S / 2)
        wait_until_free(decode, 2)
        assert found.token_ids == asked(prefill, prompt).token_ids, num_tokens


def test_engines_that_hand_over_keep_the_cores_that_they_were_given(prefill: Run, decode: Run) -> None:
    assert prefill.engine.info.num_kv_blocks == decode.engine.info.num_kv_blocks  # both are there
    engines = [
        child for child in psutil.Process().children() if "serving.engine_process.engine_loop" in words_of(child)
    ]
    assert len(engines) == 2
    for engine in engines:
        assert set(engine.cpu_affinity()) == os.sched_getaffinity(0)


def test_what_the_other_engine_found_in_its_cache_is_what_is_told(prefill: Run, decode: Run) -> None:
    prompt = prompt_of(200, 50)
    handed_over(prefill, prompt)
    longer = prompt + prompt_of(40, 51)
    found = asked(decode, longer, context_phase_params=handed_over(prefill, longer))
    assert found.perf is not None
    assert found.perf.num_cached_tokens == 200 // BLOCK_TOKENS * BLOCK_TOKENS


def test_sampling_seeds_and_penalties_are_of_the_engine_that_goes_on(prefill: Run, decode: Run) -> None:
    prompt = prompt_of(150, 60)
    for sampling in (
        {"temperature": 1.5, "top_k": 50, "seed": 7},
        {"repetition_penalty": 1.4, "frequency_penalty": 0.7},
        {"bad_words": ((11,), (12, 13)), "min_tokens": 5, "return_log_probs": True},
    ):
        handed = handed_over(prefill, prompt, **sampling)
        found = asked(decode, prompt, context_phase_params=handed, **sampling)
        assert found.token_ids == asked(prefill, prompt, **sampling).token_ids


def test_blocks_that_nobody_takes_are_free_when_their_lease_ends(prefill: Run) -> None:
    wait_until_free(prefill, LEASE_S * 2)
    handed_over(prefill, prompt_of(300, 70))
    assert prefill.engine.stats().num_used_kv_blocks
    wait_until_free(prefill, LEASE_S * 2)


def test_a_request_that_is_cancelled_before_it_runs_frees_the_other_engines_blocks(prefill: Run, decode: Run) -> None:
    wait_until_free(prefill, LEASE_S * 2)
    for seed in range(80, 90):
        prompt = prompt_of(300, seed)
        key = decode.add(prompt, max_tokens=200, context_phase_params=handed_over(prefill, prompt))
        decode.engine.cancel(key)
        wait_until_free(prefill, LEASE_S / 2)
        wait_until_free(decode, 2)


def test_what_is_no_answer_of_a_prefill_is_refused_by_name(prefill: Run, decode: Run) -> None:
    prompt = prompt_of(100, 90)
    phase = handed_over(prefill, prompt)
    digest, params = msgspec.msgpack.decode(phase)
    for bad in (b"", b"poem", msgspec.msgpack.encode([digest, params | {"remote_port": 0}]),
                msgspec.msgpack.encode([digest, params | {"remote_block_ids": [["x"]]}]),
                msgspec.msgpack.encode([digest, {}])):  # fmt: skip
        error = asked(decode, prompt, context_phase_params=bad).error
        assert error is not None
        assert "INVALID_ARG field=context_phase_params" in error
    for other in (prompt[:-1], prompt_of(100, 91)):
        error = asked(decode, other, context_phase_params=phase).error
        assert error is not None
        assert "is of another prompt or adapter" in error
    assert asked(decode, prompt, context_phase_params=phase).token_ids == asked(prefill, prompt).token_ids


def test_an_engine_whose_prefill_is_gone_computes_the_prompt_itself(prefill: Run, decode: Run) -> None:
    prompts = [prompt_of(300, seed) for seed in (95, 96)]  # the last test: it ends the engine of the others
    wanted = [asked(prefill, prompt).token_ids for prompt in prompts]
    phases = [handed_over(prefill, prompt) for prompt in prompts]
    assert asked(decode, prompts[0], context_phase_params=phases[0]).token_ids == wanted[0]
    prefill.engine.close()
    assert asked(decode, prompts[1], context_phase_params=phases[1]).token_ids == wanted[1]
    wait_until_free(decode, 2)
