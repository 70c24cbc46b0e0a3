# SPDX-License-Identifier: Apache-2.0
"""Tests of what the simulated engine adds to the conformance of every engine: its tokens, its time, its exactness."""

import itertools

import msgspec
import pytest
from pydantic import ValidationError

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import FinishReason, GenerationRequest, SamplingParams
from serving.engines.seam.clock import VirtualClock
from serving.engines.simulated.fake_model import NUM_RESERVED_IDS, hash_tokens
from serving.engines.simulated.simulated_engine import SimulatedEngine


def engine_of(clock: VirtualClock | None = None, **spec: object) -> SimulatedEngine:
    return SimulatedEngine(
        SimulatedEngineSpec.model_validate({"provider": "simulated"} | spec), clock or VirtualClock()
    )


def request(key: int, input_ids: list[int], max_tokens: int = 8, **sampling: object) -> GenerationRequest:
    params = SamplingParams(max_tokens=max_tokens, **sampling)  # type: ignore[arg-type]
    return GenerationRequest(key=key, input_ids=input_ids, sampling=params)


def outputs_of(engine: SimulatedEngine, *requests: GenerationRequest) -> list[list[int]]:
    outputs: dict[int, list[int]] = {one.key: [] for one in requests}
    for one in requests:
        engine.add(one)
    while engine.has_work:
        for chunk in engine.step():
            outputs[chunk.key] += chunk.token_ids
    return [outputs[one.key] for one in requests]


def output_of(engine: SimulatedEngine, input_ids: list[int], max_tokens: int = 8, **sampling: int) -> list[int]:
    return outputs_of(engine, request(1, input_ids, max_tokens, **sampling))[0]


def test_echo_returns_the_prompt_over_and_over() -> None:
    assert output_of(engine_of(mode="echo"), [0, 5, 6], 7) == [0, 5, 6, 0, 5, 6, 0]


def test_echo_stops_at_an_end_token_once_min_tokens_are_there() -> None:
    engine = engine_of(mode="echo")
    assert output_of(engine, [5, 6, 7], end_id=6) == [5, 6]
    assert output_of(engine, [5, 6, 7], end_id=6, min_tokens=2) == [5, 6, 7, 5, 6]
    engine.add(request(1, [5, 6, 7], 2, end_id=6))
    assert [engine.step()[0].finish_reason for _ in range(2)] == [None, FinishReason.STOP]


def test_an_engine_with_an_end_token_ends_there_unless_the_request_names_another() -> None:
    engine = engine_of(mode="echo", end_id=6)
    assert engine.info.end_ids == (6,)
    assert output_of(engine, [5, 6, 7]) == [5, 6]
    assert output_of(engine, [5, 6, 7], 5, end_id=-1) == [5, 6, 7, 5, 6]
    assert engine_of().info.end_ids == ()


def test_an_end_token_beyond_the_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match=r"end_id \(300\) is no token of vocab_size \(300\)"):
        SimulatedEngineSpec(provider="simulated", vocab_size=300, end_id=300)


def test_hash_tokens_are_never_special_ids_and_spread_over_the_vocabulary() -> None:
    tokens = list(itertools.islice(hash_tokens(1, 100), 10_000))
    assert set(tokens) == set(range(NUM_RESERVED_IDS, 100))


def test_hash_output_depends_on_prompt_and_spec_and_not_on_the_key() -> None:
    base = output_of(engine_of(), [1, 2, 3])
    assert outputs_of(engine_of(), request(99, [1, 2, 3])) == [base]
    assert output_of(engine_of(), [1, 2, 4]) != base
    assert output_of(engine_of(seed=1), [1, 2, 3]) != base


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2},
        {"temperature": 1.5},
        {"top_k": 40},
        {"top_p": 0.8},
    ],
)
def test_what_a_request_is_sampled_by_changes_the_output(change: dict[str, float]) -> None:
    base = SamplingParams(max_tokens=8, seed=1, top_p=0.9, top_k=50, temperature=1.0)
    outputs = [
        outputs_of(engine_of(), GenerationRequest(key=1, input_ids=[1, 2, 3], sampling=sampling))
        for sampling in (base, base, msgspec.structs.replace(base, **change))
    ]
    assert outputs[0] == outputs[1] != outputs[2]


def test_preemption_changes_nothing_but_the_time() -> None:
    requests = [request(key, [20 + key] * 30, 60) for key in range(8)]
    roomy, tight = engine_of(num_kv_blocks=100), engine_of(num_kv_blocks=12)
    assert outputs_of(roomy, *requests) == outputs_of(tight, *requests)
    assert tight.stats().num_steps > roomy.stats().num_steps
    assert roomy.stats().num_preemptions == 0
    assert tight.stats().num_preemptions


def test_a_step_takes_its_own_time_and_that_of_its_tokens() -> None:
    clock = VirtualClock()
    engine = engine_of(clock, step_ms=1.0, prefill_us_per_token=20.0, decode_us_per_seq=50.0)
    engine.add(request(1, list(range(100))))
    engine.step()
    assert clock.now_s() == pytest.approx(0.001 + 100 * 20e-6)
    engine.add(request(2, list(range(10))))
    engine.step()  # decodes one, prefills the other
    assert clock.now_s() == pytest.approx(0.003 + 0.001 + 10 * 20e-6 + 50e-6)


def test_an_engine_that_costs_nothing_takes_no_time() -> None:
    clock = VirtualClock()
    output_of(engine_of(clock, step_ms=0, prefill_us_per_token=0, decode_us_per_seq=0), [1, 2, 3])
    assert clock.now_s() == 0.0


def test_a_vocabulary_of_special_ids_alone_is_refused() -> None:
    engine_of(vocab_size=NUM_RESERVED_IDS + 1)
    with pytest.raises(ValidationError, match=r"vocab_size\n.*greater than or equal to 17"):
        engine_of(vocab_size=NUM_RESERVED_IDS)


def test_blocks_that_are_taken_again_after_a_preemption_count_again() -> None:
    requests = [request(key, [20 + key] * 30, 60) for key in range(8)]

    def num_allocated(num_kv_blocks: int) -> int:
        engine = engine_of(num_kv_blocks=num_kv_blocks)
        for one in requests:
            engine.add(one)
        perfs = []
        while engine.has_work:
            perfs += [chunk.perf for chunk in engine.step() if chunk.perf]
        assert len(perfs) == len(requests)
        assert sum(perf.num_preemptions or 0 for perf in perfs) == engine.stats().num_preemptions
        return sum(perf.kv_cache_alloc_total_blocks or 0 for perf in perfs)

    assert num_allocated(100) == 8 * 6  # of 16 tokens, for 30 + 59: the last token is never fed back
    assert num_allocated(12) > 8 * 6


def test_a_long_prompt_is_prefilled_beside_streams_that_all_get_a_token_in_every_step() -> None:
    clock = VirtualClock()
    spec = {"step_ms": 1.0, "prefill_us_per_token": 20.0, "decode_us_per_seq": 50.0}
    engine = engine_of(clock, max_num_batched_tokens=128, **spec)
    for key in range(16):
        engine.add(request(key, [20], 100))
    engine.step()
    engine.add(request(99, [20] * 1000, 1))
    steps: list[tuple[list[int], float]] = []
    while not steps or 99 not in steps[-1][0]:
        start_s = clock.now_s()
        keys = sorted(chunk.key for chunk in engine.step())
        steps.append((keys, round(1e3 * (clock.now_s() - start_s), 6)))
    # A step has room for 128 - 16 = 112 tokens of the prompt: eight steps take 896, the ninth the other 104.
    whole_ms = 1 + 16 * 0.05 + 112 * 0.02
    assert steps[:8] == [(list(range(16)), round(whole_ms, 6))] * 8
    assert steps[8:] == [([*range(16), 99], round(whole_ms - 8 * 0.02, 6))]


def test_an_engine_that_fails_a_share_of_its_requests_fails_these_alone() -> None:
    engine = engine_of(fault={"kind": "error", "share": 0.25, "after_requests": 4})
    for key in range(20):
        engine.add(request(key, [5, 6, 7]))
    failed, ended = set[int](), set[int]()
    while engine.has_work:
        for chunk in engine.step():
            if chunk.error is not None:
                assert chunk.error.startswith("[INTERNAL")
                assert chunk.token_ids == []
                failed.add(chunk.key)
            elif chunk.finish_reason is not None:
                ended.add(chunk.key)
    assert failed == {7, 11, 15, 19}
    assert ended == set(range(20)) - failed
    assert engine.stats().num_used_kv_blocks == 0
