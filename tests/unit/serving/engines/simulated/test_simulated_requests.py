# SPDX-License-Identifier: Apache-2.0
"""Tests of what requests can ask of the simulated engine beyond tokens: each has its own constant effect."""

import itertools
from typing import Any

import numpy as np
import pytest

from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.base import (
    ExtraOutputs,
    FinishReason,
    GenerationRequest,
    PerfMetrics,
    SamplingParams,
    TokenChunk,
)
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.packed_array import PackedArray
from serving.engines.simulated.simulated_engine import SimulatedEngine
from trireme.base.errors import RequestError

VOCAB_SIZE = 200
PROMPT = [20, 30, 40]


class Bench:
    """An engine and its clock."""

    def __init__(self, **spec: object) -> None:
        data = {"provider": "simulated", "vocab_size": VOCAB_SIZE, "kv_block_tokens": 4} | spec
        self.clock = VirtualClock()
        self.engine = SimulatedEngine(SimulatedEngineSpec.model_validate(data), self.clock)
        self._keys = itertools.count(1)

    def chunks(self, prompt: Any = None, max_tokens: Any = 8, **sampling: Any) -> list[TokenChunk]:
        params = SamplingParams(max_tokens=max_tokens, **sampling)
        request = GenerationRequest(key=next(self._keys), input_ids=prompt or PROMPT, sampling=params)
        self.engine.add(request)
        chunks = []
        while self.engine.has_work:
            chunks += self.engine.step()
        assert chunks[-1].error is None, chunks[-1].error
        return chunks

    def tokens(self, prompt: Any = None, max_tokens: Any = 8, **sampling: Any) -> list[int]:
        return [token_id for chunk in self.chunks(prompt, max_tokens, **sampling) for token_id in chunk.token_ids]

    def perf(self, prompt: Any = None, max_tokens: Any = 8, **sampling: Any) -> PerfMetrics:
        perf = self.chunks(prompt, max_tokens, **sampling)[-1].perf
        assert perf is not None
        return perf


def extras_of(chunk: TokenChunk) -> ExtraOutputs:
    assert chunk.extras is not None
    return chunk.extras


def packed(*rows: object, dtype: str = "float16") -> PackedArray:
    return PackedArray.of(np.array(rows, dtype=dtype))


TABLE, OTHER_TABLE = packed([1.0, 2.0]), packed([1.0, 3.0])
HIDDEN = [
    ("prompt_embedding_table", TABLE, OTHER_TABLE),
    ("prompt_vocab_size", 1, 2),
    ("prompt_table_extra_ids", (1, 1, 1), (2, 2, 2)),
    ("lora_task_id", 1, 2),
    ("lora_name", "a", "b"),
    ("lora_weights", TABLE, OTHER_TABLE),
    ("lora_config", packed([0, 0, 8], dtype="int32"), packed([0, 1, 8], dtype="int32")),
    ("decoder_input_ids", (5, 6), (5, 7)),
    ("decoder_input_lengths", 2, 3),
    ("encoder_input_features", TABLE, OTHER_TABLE),
    ("encoder_output_lengths", 1, 2),
    ("cross_attention_mask", packed([True, False], dtype="bool"), packed([True, True], dtype="bool")),
    ("skip_cross_attn_blocks", True, None),
    ("mrope_rotary_cos_sin", TABLE, OTHER_TABLE),
    ("mrope_position_deltas", 1, 2),
    ("guide_type", "json", "regex"),
    ("guide", "a", "b"),
]


@pytest.mark.parametrize(("name", "value", "other"), HIDDEN, ids=[name for name, _, _ in HIDDEN])
def test_what_changes_hidden_numbers_gives_another_output_by_its_content(
    name: str, value: object, other: object
) -> None:
    bench = Bench()
    plain, first, again = bench.tokens(), bench.tokens(**{name: value}), bench.tokens(**{name: value})
    assert plain != first == again
    if other is not None:
        assert bench.tokens(**{name: other}) != first


# Logits


def test_generation_logits_are_highest_at_the_tokens_that_came() -> None:
    chunks = Bench().chunks(return_generation_logits=True)
    rows = [extras_of(chunk).generation_logits for chunk in chunks]
    assert all(row is not None and row.shape == (1, VOCAB_SIZE) for row in rows)
    highest = [int(row.array().argmax()) for row in rows if row is not None]
    assert highest == [chunk.token_ids[0] for chunk in chunks]


def test_generation_logits_are_the_models_own_whatever_is_added_to_them() -> None:
    [chunk] = Bench().chunks(None, 1, return_generation_logits=True, embedding_bias={99: 50.0})
    [plain] = Bench().chunks(None, 1)
    logits = extras_of(chunk).generation_logits
    assert logits is not None
    assert chunk.token_ids == [99]
    assert int(logits.array().argmax()) == plain.token_ids[0]


@pytest.mark.parametrize("mode", ["hash", "echo"])
def test_context_logits_tell_what_would_follow_each_token_of_the_prompt(mode: str) -> None:
    bench = Bench(mode=mode)
    first, second = bench.chunks(None, 2, return_context_logits=True)
    logits = extras_of(first).context_logits
    assert logits is not None
    assert logits.shape == (3, VOCAB_SIZE)
    assert second.extras is None or second.extras.context_logits is None, "once"
    ends = [PROMPT[:n] for n in (1, 2, 3)]
    expected = [30, 40, 20] if mode == "echo" else [bench.tokens(prompt, 1)[0] for prompt in ends]
    assert logits.array().argmax(axis=1).tolist() == expected


# Beams


def beams_of(bench: Bench, **sampling: Any) -> tuple[list[list[int]], FinishReason | None]:
    [chunk] = bench.chunks(**{"beam_width": 3} | sampling)
    beams = extras_of(chunk).beams
    assert beams is not None
    assert chunk.token_ids == beams[0].token_ids
    return [beam.token_ids for beam in beams], chunk.finish_reason


def test_the_best_beam_is_what_greedy_decoding_finds_and_the_others_are_others() -> None:
    bench = Bench()
    beams, reason = beams_of(bench)
    assert beams[0] == bench.tokens()
    assert len({tuple(beam) for beam in beams}) == 3
    assert {len(beam) for beam in beams} == {8}
    assert reason is FinishReason.LENGTH
    assert beams_of(bench) == (beams, reason)


def test_beams_are_ranked_by_the_sums_of_their_log_probabilities() -> None:
    [chunk] = Bench().chunks(beam_width=4, return_log_probs=True, return_generation_logits=True)
    beams = extras_of(chunk).beams
    assert beams is not None
    sums = [sum(beam.log_probs or []) for beam in beams]
    assert sums == pytest.approx([beam.cum_log_prob for beam in beams])
    assert sums == sorted(sums, reverse=True)
    assert [beam.generation_logits.shape for beam in beams if beam.generation_logits] == [(8, VOCAB_SIZE)] * 4


def test_a_beam_search_takes_a_step_for_each_position_and_one_sequence_of_blocks() -> None:
    bench = Bench(num_kv_blocks=3)
    before = bench.engine.stats().num_steps
    beams_of(bench)
    assert bench.engine.stats().num_steps - before == 8


def test_length_penalty_decides_between_a_short_beam_and_a_long_one() -> None:
    bench = Bench()
    end_id = bench.tokens()[2]
    short, _ = beams_of(bench, end_id=end_id, length_penalty=0.0)
    long, _ = beams_of(bench, end_id=end_id, length_penalty=5.0)
    assert len(short[0]) == 3
    assert len(long[0]) == 8


def test_early_stopping_ends_a_search_when_enough_beams_have_ended() -> None:
    bench = Bench(mode="echo")
    asked = {"end_id": PROMPT[2], "length_penalty": 5.0, "max_tokens": 20}
    patient, _ = beams_of(bench, **asked)
    hasty, reason = beams_of(bench, **asked, early_stopping=True)
    assert max(len(beam) for beam in hasty) < max(len(beam) for beam in patient)
    assert reason is FinishReason.STOP


def test_diversity_keeps_beams_from_branching_off_one_another() -> None:
    bench = Bench()
    assert beams_of(bench)[0] != beams_of(bench, beam_search_diversity_rate=3.0)[0]


def test_no_beam_ends_before_min_tokens() -> None:
    bench = Bench()
    end_id = bench.tokens()[2]
    beams, _ = beams_of(bench, end_id=end_id, min_tokens=5)
    assert min(len(beam) for beam in beams) > 5


# Drafts


def test_drafts_that_would_have_come_are_taken_at_once_and_change_nothing() -> None:
    bench = Bench()
    expected = bench.tokens()
    chunks = bench.chunks(draft_input_ids=(*expected[:3], 199))
    assert [len(chunk.token_ids) for chunk in chunks] == [4, 1, 1, 1, 1]
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == expected
    perf = chunks[-1].perf
    assert perf is not None
    assert (perf.total_draft_tokens, perf.total_accepted_draft_tokens) == (4, 3)


def test_drafts_with_logits_are_taken_where_they_are_likely_enough() -> None:
    bench = Bench()
    draft_id = (bench.tokens()[0] + 50) % 100 + 50  # has the logit 0: about 1 in 1,000
    logits = np.zeros((1, VOCAB_SIZE), dtype=np.float32)  # to the draft's model one in 200
    asked = {"draft_input_ids": (draft_id,), "draft_logits": PackedArray.of(logits)}
    assert bench.tokens(**asked)[0] != draft_id, "less likely than to the draft's model"
    assert bench.tokens(**asked, draft_acceptance_threshold=0.01)[0] == draft_id
    assert len(bench.tokens(**asked, draft_acceptance_threshold=0.01)) == 8


def test_a_draft_that_would_have_come_is_taken_however_sure_of_it_its_model_is() -> None:
    bench = Bench()
    expected = bench.tokens()
    logits = np.zeros((1, VOCAB_SIZE), dtype=np.float32)
    logits[0, expected[0]] = 50.0  # certain
    chunks = bench.chunks(draft_input_ids=(expected[0],), draft_logits=PackedArray.of(logits))
    assert len(chunks[0].token_ids) == 2
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == expected


def test_drafts_leave_room_for_a_token_and_take_no_end() -> None:
    bench = Bench()
    expected = bench.tokens()
    assert bench.tokens(None, 3, draft_input_ids=tuple(expected[:5])) == expected[:3]
    [chunk] = bench.chunks(draft_input_ids=tuple(expected[:5]), end_id=expected[2])
    assert (chunk.token_ids, chunk.finish_reason) == (expected[:3], FinishReason.STOP)


def test_lookahead_makes_the_same_tokens_in_fewer_steps_and_counts_its_guesses() -> None:
    bench = Bench()
    sizes = {"lookahead_window_size": 5, "lookahead_ngram_size": 3, "lookahead_verification_set_size": 2}
    chunks = bench.chunks(**sizes)
    assert [len(chunk.token_ids) for chunk in chunks] == [1, 3, 3, 1]
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == bench.tokens()
    perf = chunks[-1].perf
    assert perf is not None
    # Three steps, each with (3 - 1) guesses for 5 + 2 n-grams; of the right ones two, two and none were of use.
    assert (perf.total_draft_tokens, perf.total_accepted_draft_tokens) == (3 * 14, 4)


def test_lookahead_in_a_full_kv_cache_finishes_all_requests() -> None:
    bench = Bench(num_kv_blocks=8)
    sizes: dict[str, Any] = {
        "lookahead_window_size": 2, "lookahead_ngram_size": 4, "lookahead_verification_set_size": 2
    }  # fmt: skip
    for key in range(100, 106):
        params = SamplingParams(max_tokens=20, **sizes)
        bench.engine.add(GenerationRequest(key=key, input_ids=[key] * 10, sampling=params))
    num_tokens = dict.fromkeys(range(100, 106), 0)
    while bench.engine.has_work:
        for chunk in bench.engine.step():
            num_tokens[chunk.key] += len(chunk.token_ids)
        assert bench.engine.stats().num_used_kv_blocks <= 8
    assert set(num_tokens.values()) == {20}
    assert bench.engine.stats().num_used_kv_blocks == 0


# What stays in the KV cache, and what comes into it

LONG = list(range(20, 36))  # four blocks
ALL_OF_IT = {
    "retention_token_range_starts": (0,),
    "retention_token_range_ends": (-1,),
    "retention_token_range_priorities": (50,),
}


def num_reused(bench: Bench, prompt: list[int] = LONG) -> int | None:
    return bench.perf(prompt).kv_cache_reused_blocks


def test_without_retention_nothing_is_kept() -> None:
    bench = Bench()
    bench.tokens(LONG)
    assert num_reused(bench) == 0


def test_blocks_that_a_request_wants_kept_are_reused_and_their_prefill_saved() -> None:
    bench = Bench(step_ms=0, decode_us_per_seq=0, prefill_us_per_token=1000)
    expected = bench.tokens(LONG, **ALL_OF_IT)
    first_ms = bench.clock.now_s() * 1000
    assert bench.tokens(LONG) == expected
    assert first_ms == pytest.approx(16)
    assert bench.clock.now_s() * 1000 - first_ms == pytest.approx(4), (
        "the last block is computed: of it comes the token"
    )
    perf = bench.perf(LONG)
    assert perf.kv_cache_reused_blocks == 3
    assert perf.kv_cache_alloc_total_blocks == 3 + (perf.kv_cache_alloc_new_blocks or 0)
    assert num_reused(bench, [*LONG[:8], 99, 99, 99, 99]) == 2, "as far as the prompt is the same"


def test_a_range_covers_its_own_blocks_only() -> None:
    bench = Bench()
    bench.tokens(LONG, **ALL_OF_IT | {"retention_token_range_ends": (8,)})
    assert num_reused(bench) == 2
    other = Bench()
    other.tokens(LONG, **ALL_OF_IT | {"retention_token_range_starts": (4,)})
    assert num_reused(other) == 0, "a prompt is reused from its beginning"


def test_a_kept_block_is_lost_after_its_duration() -> None:
    bench = Bench()
    bench.tokens(LONG, **ALL_OF_IT, retention_token_range_durations_ms=(100,))
    bench.clock.sleep_s(0.05)
    assert num_reused(bench) == 3
    bench.clock.sleep_s(0.1)
    assert num_reused(bench) == 0


def test_blocks_of_the_output_are_kept_by_the_decode_priority_and_duration() -> None:
    bench = Bench()
    output = bench.tokens(LONG, **ALL_OF_IT, retention_decode_priority=50, retention_decode_duration_ms=100)
    assert num_reused(bench, LONG + output) == 5  # 16 prompt tokens and 7 of 8 output tokens
    bench.clock.sleep_s(0.2)
    assert num_reused(bench, LONG + output) == 4


def test_the_lowest_priority_goes_first_when_others_need_the_room() -> None:
    bench = Bench(num_kv_blocks=12)
    dear, cheap = LONG, [token_id + 100 for token_id in LONG]
    bench.tokens(dear, **ALL_OF_IT | {"retention_token_range_priorities": (90,)})
    bench.tokens(cheap, **ALL_OF_IT | {"retention_token_range_priorities": (10,)})
    params = SamplingParams(max_tokens=2)
    bench.engine.add(GenerationRequest(key=500, input_ids=[150] * 30, sampling=params))  # takes eight of twelve blocks
    bench.engine.step()
    bench.engine.add(GenerationRequest(key=501, input_ids=dear, sampling=params))
    while bench.engine.has_work:
        bench.engine.step()
    assert (num_reused(bench, cheap), num_reused(bench, dear)) == (0, 3)


def test_the_phases_of_disaggregated_serving_together_make_what_one_server_makes() -> None:
    both, prefill = Bench(), Bench()
    decode = Bench(step_ms=0, decode_us_per_seq=0, prefill_us_per_token=1000)
    [handed] = prefill.chunks(LONG, is_context_only=True)
    params = extras_of(handed).context_phase_params
    assert params is not None
    assert handed.token_ids == both.tokens(LONG)[:1]
    assert decode.tokens(LONG, context_phase_params=params) == both.tokens(LONG)
    assert decode.clock.now_s() * 1000 == pytest.approx(1), "of sixteen tokens the last is computed"


@pytest.mark.parametrize("is_of_another_prompt", [True, False])
def test_what_was_handed_over_must_be_of_this_prompt(is_of_another_prompt: bool) -> None:
    bench = Bench()
    params = b"poem"
    if is_of_another_prompt:
        params = extras_of(bench.chunks(LONG, is_context_only=True)[0]).context_phase_params or b""
    with pytest.raises(RequestError, match="context_phase_params is ") as refusal:
        bench.chunks(PROMPT, context_phase_params=params)
    assert refusal.value.facts["field"] == "context_phase_params"
