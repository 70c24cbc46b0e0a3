# SPDX-License-Identifier: Apache-2.0
"""Every tensor of a request to the engine step is read into its field with its value, or refused by name."""

import math

import msgspec
import numpy as np
import pytest

from ensemble_configs.render.tensors import AS_MANY_AS_FIT, BLS_INPUTS, SCHEDULING_INPUTS, Tensor, inputs_of, named_at
from serving.engines.seam.base import EngineInfo, SamplingParams
from serving.engines.seam.packed_array import PackedArray
from serving.requests.engine_request import DecodedRequest, RequestDecoder, ResponseOptions
from serving.requests.stream_state import StreamContext, pack
from trireme.base.errors import RequestError

ROWS: dict[str, Tensor] = dict(inputs_of("tensorrt_llm") + named_at("tensorrt_llm_bls", BLS_INPUTS))
TAKEN_BY_NONE = {name: row for name, row in ROWS.items() if row.why_not}
TAKEN = [name for name in ROWS if name not in TAKEN_BY_NONE]

DTYPES: dict[str, type[np.generic]] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_UINT64": np.uint64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_STRING": np.object_,
}

# At most 10 tokens of prompt and output together, ids 0 to 99.
INFO = EngineInfo(
    provider="toy",
    vocab_size=100,
    max_seq_len=10,
    end_ids=(1,),
    kv_block_tokens=4,
    num_kv_blocks=8,
    max_num_seqs=2,
    max_num_batched_tokens=64,
    supported=frozenset(SamplingParams.__struct_fields__),
    is_admitting=True,
)


def array(name: str, value: object) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """Return a tensor in the form of Triton: a scalar as ``[1]``, any other as ``[1, *dims]``."""
    row = ROWS[name]
    return np.array([value], dtype=DTYPES[row.data_type])


def decode(info: EngineInfo = INFO, /, **values: object) -> DecodedRequest:
    """Decode a minimal request with these values beside or instead of its own; None leaves a tensor out."""
    given = {"input_ids": [5, 6, 7], "input_lengths": 3, "request_output_len": 4} | values
    if "input_ids" in values and "input_lengths" not in values:
        del given["input_lengths"]
    tensors = {name: array(name, value) for name, value in given.items() if value is not None}
    return RequestDecoder(info).decode(tensors)


def refusal(info: EngineInfo = INFO, /, **values: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        decode(info, **values)
    return caught.value


def packed(value: object, dtype: type[np.generic]) -> PackedArray:
    return PackedArray.of(np.array(value, dtype=dtype))


# Tensor: a value, and what the field holds then.
VALUES: dict[str, tuple[object, object]] = {
    "input_ids": ([5, 99, 0], [5, 99, 0]),
    "input_lengths": (3, 3),
    "request_output_len": (7, 7),
    "end_id": (42, 42),
    "pad_id": (2, 2),
    "stop_words_list": ([[8, 9, 0], [1, 2, -1]], [[8, 9, 0], [1, 2, -1]]),
    "bad_words_list": ([[8, 9, 5, 0], [2, 3, -1, -1]], ((8, 9), (5,))),
    "embedding_bias": ([0.0, 1.5, 0.0, -2.0], {1: 1.5, 3: -2.0}),
    "beam_width": (4, 4),
    "len_penalty": (0.5, 0.5),
    "early_stopping": (False, False),
    "beam_search_diversity_rate": (0.5, 0.5),
    "return_context_logits": (True, True),
    "return_generation_logits": (True, True),
    "lora_task_id": (2**64 - 1, 2**64 - 1),
    "lora_name": ([b"legal-en"], "legal-en"),
    "draft_input_ids": ([5, 99], (5, 99)),
    "num_draft_tokens": (5, 5),
    "use_draft_logits": (True, True),
    "runtime_top_p_min": (0.1, 0.1),
    "runtime_top_p_decay": (0.9, 0.9),
    "runtime_top_p_reset_ids": (7, 7),
    "lookahead_window_size": ([3], 3),
    "lookahead_ngram_size": ([4], 4),
    "lookahead_verification_set_size": ([5], 5),
    "guided_decoding_guide_type": ([b"regex"], "regex"),
    "guided_decoding_guide": ([b"a+"], "a+"),
    "stream_context": (list(b"\x92\x07\x90"), b"\x92\x07\x90"),
    "streaming": (True, True),
    "exclude_input_in_output": (True, True),
    "temperature": (0.1, 0.1),
    "runtime_top_k": (40, 40),
    "runtime_top_p": (0.9, 0.9),
    "seed": (2**64 - 1, 2**64 - 1),
    "random_seed": (7, 7),
    "repetition_penalty": (1.1, 1.1),
    "presence_penalty": (-2.0, -2.0),
    "frequency_penalty": (0.3, 0.3),
    "min_tokens": (3, 3),
    "min_length": (3, 3),
    "return_num_input_tokens": (True, True),
    "return_num_output_tokens": (True, True),
    "return_num_cached_tokens": (True, True),
    "return_finish_reason": (True, True),
    "return_release": (True, True),
    "return_token_ids": (True, True),
    "continued_ids": ([8, 9], [8, 9]),
    "num_return_sequences": (3, 3),
    "return_log_probs": (True, True),
    "return_perf_metrics": (True, True),
    "return_kv_cache_reuse_stats": (True, True),
    "stop": (True, True),
    "prompt_embedding_table": ([[0.5, 1.0], [1.5, 2.0]], packed([[0.5, 1.0], [1.5, 2.0]], np.float16)),
    "prompt_vocab_size": (2, 2),
    "prompt_table_extra_ids": ([7, 2**63, 0], (7, 2**63, 0)),
    "lora_weights": ([[0.5, 1.0]], packed([[0.5, 1.0]], np.float16)),
    "lora_config": ([[0, 1, 8]], packed([[0, 1, 8]], np.int32)),
    "draft_logits": ([[0.5] * 100], packed([[0.5] * 100], np.float32)),
    "draft_acceptance_threshold": (0.1, 0.1),
    "decoder_input_ids": ([8, 9], (8, 9)),
    "decoder_input_lengths": (2, 2),
    "encoder_input_features": ([[0.5, 1.0]], packed([[0.5, 1.0]], np.float16)),
    "encoder_output_lengths": (1, 1),
    "cross_attention_mask": ([[True, False]], packed([[True, False]], np.bool_)),
    "skip_cross_attn_blocks": (True, True),
    "mrope_rotary_cos_sin": ([0.5, 1.0], packed([0.5, 1.0], np.float32)),
    "mrope_position_deltas": (-3, -3),
    "context_phase_params": (list(b"handed over"), b"handed over"),
    "retention_token_range_starts": ([0, 4], (0, 4)),
    "retention_token_range_ends": ([4, -1], (4, -1)),
    "retention_token_range_priorities": ([100, 0], (100, 0)),
    "retention_token_range_durations_ms": ([500, -1], (500, -1)),
    "retention_decode_priority": (35, 35),
    "retention_decode_duration_ms": (-1, -1),
    "priority": (3, 3),
    "tenant": ([b"gold"], "gold"),
    "deadline_ms": (500, 500),
    "queue_timeout_ms": (200, 200),
}


RANGES: dict[str, object] = {
    f"retention_token_range_{name}": VALUES[f"retention_token_range_{name}"][0]
    for name in ("starts", "ends", "priorities")
}
# What a tensor cannot be without.
COMPANIONS: dict[str, dict[str, object]] = {
    "prompt_vocab_size": {"prompt_embedding_table": [[0.5, 1.0], [1.5, 2.0]]},
    "lora_weights": {"lora_task_id": 1, "lora_config": [[0, 1, 8]]},
    "lora_config": {"lora_task_id": 1, "lora_weights": [[0.5, 1.0]]},
    "use_draft_logits": {"num_draft_tokens": 5},
    "draft_logits": {"draft_input_ids": [5]},
    "draft_acceptance_threshold": {"draft_input_ids": [5], "draft_logits": [[0.5] * 100]},
    "decoder_input_lengths": {"decoder_input_ids": [8, 9]},
    "encoder_output_lengths": {"encoder_input_features": [[0.5]]},
    "cross_attention_mask": {"encoder_input_features": [[0.5]]},
    "skip_cross_attn_blocks": {"encoder_input_features": [[0.5]]},
    "mrope_rotary_cos_sin": {"mrope_position_deltas": -3},
    "mrope_position_deltas": {"mrope_rotary_cos_sin": [0.5]},
    **{f"retention_token_range_{name}": RANGES for name in ("starts", "ends", "priorities", "durations_ms")},
    "guided_decoding_guide_type": {"guided_decoding_guide": [b"a+"]},
    "guided_decoding_guide": {"guided_decoding_guide_type": [b"regex"]},
}


def test_the_table_above_knows_every_tensor() -> None:
    assert set(VALUES) == set(TAKEN)


@pytest.mark.parametrize("name", TAKEN)
def test_a_tensor_is_read_into_its_field(name: str) -> None:
    value, expected = VALUES[name]
    decoded = decode(**COMPANIONS.get(name, {}) | {name: value})
    field = ROWS[name].field
    holders: tuple[msgspec.Struct, ...] = (decoded.sampling, decoded.scheduling, decoded.options)
    holder = next(each for each in holders if hasattr(each, field))
    found = getattr(holder, field)
    assert found == expected
    assert type(found) is type(expected)


def test_what_is_not_sent_keeps_its_default() -> None:
    decoded = decode()
    assert decoded.sampling == SamplingParams(max_tokens=4)
    assert decoded.options == ResponseOptions(input_ids=[5, 6, 7], input_length=3)


@pytest.mark.parametrize("name", TAKEN_BY_NONE)
def test_what_no_provider_takes_is_refused_by_name(name: str) -> None:
    row = TAKEN_BY_NONE[name]
    item: object = {"TYPE_STRING": b"x", "TYPE_BOOL": True}.get(row.data_type, 3)
    value = item
    for size in [] if row.is_scalar else reversed(row.dims):
        value = [value] * max(size, 1)
    error = refusal(**{name: value})
    assert error.facts["field"] == name
    assert error.message == f"{name} is not supported by the provider 'toy'; {row.why_not}"
    assert error.facts["provider"] == "toy"


BARE = msgspec.structs.replace(INFO, supported=frozenset({"max_tokens"}))


def test_a_refused_option_is_called_as_the_client_of_the_ensemble_calls_it() -> None:
    error = refusal(BARE, len_penalty=2.0)
    assert error.facts["field"] == "length_penalty"
    assert error.message == "length_penalty (2.0) is not supported by the provider 'toy'; leave it out"


def test_the_value_in_a_refusal_is_the_one_that_was_sent() -> None:
    assert refusal(BARE, prompt_vocab_size=7).facts["value"] == 7
    assert refusal(BARE, repetition_penalty=1.1).facts["value"] == 1.1


OUT_OF_RANGE = [
    ("request_output_len", 0, "max_tokens", "at least 1"),
    ("request_output_len", -5, "max_tokens", "at least 1"),
    ("request_output_len", -2, "max_tokens", "at least 1"),
    ("temperature", -0.01, "temperature", "at least 0"),
    ("runtime_top_k", -1, "top_k", "at least 0"),
    ("runtime_top_p", -0.1, "top_p", "0 to 1"),
    ("runtime_top_p", 1.001, "top_p", "0 to 1"),
    ("min_tokens", -1, "min_tokens", "at least 0"),
    ("beam_width", 0, "beam_width", "1 to 32"),
    ("lookahead_window_size", [0], "lookahead_window_size", "at least 1"),
    ("runtime_top_p_decay", 0.0, "top_p_decay", "above 0 and at most 1"),
    ("runtime_top_p_min", 1.5, "top_p_min", "0 to 1"),
    ("runtime_top_p_reset_ids", 100, "top_p_reset_id", "-1 (none) to 99"),
    ("draft_input_ids", [5, 100], "draft_input_ids", "0 to 99, the model's vocabulary"),
    ("num_draft_tokens", -1, "num_draft_tokens", "at least 0"),
    ("num_return_sequences", 0, "num_return_sequences", "1 to 128"),
    ("num_return_sequences", 129, "num_return_sequences", "1 to 128"),
    ("repetition_penalty", 0.0, "repetition_penalty", "above 0"),
    ("repetition_penalty", -1.0, "repetition_penalty", "above 0"),
    ("presence_penalty", -2.1, "presence_penalty", "-2 to 2"),
    ("frequency_penalty", 2.5, "frequency_penalty", "-2 to 2"),
    ("end_id", -2, "end_id", "-1 (none) to 99"),
    ("end_id", 100, "end_id", "-1 (none) to 99"),
    *((name, value, ROWS[name].field, "a finite number")
      for name in ("temperature", "runtime_top_p", "repetition_penalty") for value in (math.nan, math.inf, -math.inf)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value", "field", "allowed"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(
    name: str, value: float, field: str, allowed: str
) -> None:
    error = refusal(**{name: value})
    shown = value[-1] if isinstance(value, list) else value
    assert error.message == f"{field} must be {allowed}; got {shown}"
    assert error.facts["field"] == field
    assert str(error.facts["value"]) == str(shown)  # as text: NaN is not itself


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0),
        ("runtime_top_k", 0),
        ("runtime_top_k", 2**31 - 1),
        ("runtime_top_p", 0.0),
        ("runtime_top_p", 1.0),
        ("seed", 0),
        ("min_tokens", 0),
        ("end_id", -1),
        ("end_id", 0),
        ("end_id", 99),
        ("request_output_len", 1),
        ("repetition_penalty", 1e-6),
        ("presence_penalty", -2.0),
        ("presence_penalty", 2.0),
        ("num_return_sequences", 1),
        ("num_return_sequences", 128),
    ],
)
def test_the_ends_of_a_range_are_inside_it(name: str, value: float) -> None:
    decoded = decode(**{name: value})
    assert value in [getattr(holder, ROWS[name].field, None) for holder in (decoded.sampling, decoded.options)]


@pytest.mark.parametrize(("new", "old"), [("seed", "random_seed"), ("min_tokens", "min_length")])
def test_two_names_of_one_setting_may_agree_and_not_contradict(new: str, old: str) -> None:
    assert decode(**{new: 3, old: 3}) == decode(**{new: 3}) == decode(**{old: 3})
    error = refusal(**{new: 3, old: 2})
    assert error.facts == {"field": old, "value": 2}
    assert "contradicts the same setting under its other name (3)" in error.message


@pytest.mark.parametrize(
    "rows",
    [[[8, 9], [3, -1]], [[8, 9], [2, 1]], [[8, 9], [1, 1]], [[8, 9], [0, 2]]],
    ids=["beyond the ids", "descending", "an empty word", "an empty first word"],
)
def test_bad_words_with_ends_that_make_no_sense_are_refused(rows: list[list[int]]) -> None:
    error = refusal(bad_words_list=rows)
    assert error.facts["field"] == "bad_words"
    assert "ascending ends" in error.message


def test_bad_words_outside_the_vocabulary_are_refused() -> None:
    assert refusal(bad_words_list=[[100], [1]]).message == "bad_words must be 0 to 99, the model's vocabulary; got 100"
    assert decode(bad_words_list=[[100, 0], [-1, -1]]).sampling.bad_words == (), "padding is nobody's"


def test_an_embedding_bias_may_be_short_and_neither_long_nor_infinite() -> None:
    assert decode(embedding_bias=[0.0] * 100).sampling.embedding_bias is None
    assert refusal(embedding_bias=[0.0] * 101).message == "embedding_bias has 101 weights; the model has 100 tokens"
    assert refusal(embedding_bias=[math.nan]).message == "embedding_bias must be finite numbers"


TYPE, GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
BAD_GUIDES: dict[str, tuple[dict[str, object], str, str]] = {
    "no guide": ({TYPE: [b"regex"]}, GUIDE, "guided_decoding_guide_type regex needs a guide"),
    "no type": ({GUIDE: [b"a+"]}, TYPE, "guided_decoding_guide needs guided_decoding_guide_type; send one of json, "),
    "an unknown type": ({TYPE: [b"yaml"], GUIDE: [b"a"]}, TYPE, "must be one of json, json_schema, regex"),
    "a guide for any JSON": (
        {TYPE: [b"json"], GUIDE: [b"{}"]},
        GUIDE,
        "guided_decoding_guide_type json takes no guide",
    ),
    "not UTF-8": ({TYPE: [b"regex"], GUIDE: [b"\xff"]}, GUIDE, "is not UTF-8"),
    "too long": ({TYPE: [b"regex"], GUIDE: [b"a" * 65537]}, GUIDE, "has 65537 characters; send at most 65536"),
}


@pytest.mark.parametrize("name", BAD_GUIDES)
def test_a_guide_that_says_nothing_clear_is_refused(name: str) -> None:
    values, field, message = BAD_GUIDES[name]
    error = refusal(**values)
    assert error.facts["field"] == field
    assert message in error.message


def test_of_two_parameters_that_are_not_supported_the_same_one_is_named_in_whatever_order_they_came() -> None:
    first, second = ({"seed": 3, "len_penalty": 2.0}, {"len_penalty": 2.0, "seed": 3})
    assert refusal(BARE, **first).facts == refusal(BARE, **second).facts


def test_an_empty_guide_asks_for_nothing_and_any_json_needs_none() -> None:
    assert decode(**{TYPE: [b""], GUIDE: [b""]}) == decode()
    assert decode(**{TYPE: [b"json"], GUIDE: [b""]}).sampling.guide_type == "json"


def test_an_empty_prompt_is_refused() -> None:
    assert refusal(input_ids=[]).message == "input_ids is empty; send at least one token"
    assert refusal(input_ids=None, input_lengths=None).message == "input_ids is empty; send at least one token"


def test_a_length_that_is_not_the_prompts_is_refused() -> None:
    error = refusal(input_ids=[5, 6, 7], input_lengths=2)
    assert error.message == "input_lengths must be 3, the number of input_ids; got 2"


@pytest.mark.parametrize("bad", [-1, 100, 2**31 - 1, -(2**31)])
def test_an_id_outside_the_vocabulary_is_refused_wherever_it_stands(bad: int) -> None:
    for ids in ([bad, 5], [5, bad], [0, 99, bad]):
        error = refusal(input_ids=ids)
        assert error.message == f"input_ids must be 0 to 99, the model's vocabulary; got {bad}"
    assert decode(input_ids=[0, 99]).options.input_ids == [0, 99]


@pytest.mark.parametrize("num_prompt_tokens", [1, 3, 9])
def test_prompt_and_output_may_fill_the_models_length_to_the_last_token(num_prompt_tokens: int) -> None:
    room = 10 - num_prompt_tokens
    prompt = [5] * num_prompt_tokens
    assert decode(input_ids=prompt, request_output_len=room).sampling.max_tokens == room
    error = refusal(input_ids=prompt, request_output_len=room + 1)
    assert error.facts == {"field": "max_tokens", "value": room + 1}
    assert error.message.startswith(f"max_tokens must be 1 to {room} for this prompt (10 tokens")


@pytest.mark.parametrize("num_prompt_tokens", [1, 9])
def test_as_many_tokens_as_fit_are_what_the_prompt_leaves(num_prompt_tokens: int) -> None:
    decoded = decode(input_ids=[5] * num_prompt_tokens, request_output_len=AS_MANY_AS_FIT)
    assert decoded.sampling.max_tokens == 10 - num_prompt_tokens
    error = refusal(input_ids=[5] * 10, request_output_len=AS_MANY_AS_FIT)
    assert error.facts["field"] == "input_ids"


@pytest.mark.parametrize("num_prompt_tokens", [10, 11])
def test_a_prompt_that_leaves_no_room_for_a_token_is_refused_by_its_own_length(num_prompt_tokens: int) -> None:
    error = refusal(input_ids=[5] * num_prompt_tokens, request_output_len=1)
    assert error.facts == {"field": "input_ids", "value": num_prompt_tokens, "max": 9}
    assert f"the prompt has {num_prompt_tokens} tokens" in error.message


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if hasattr(SamplingParams, row.field)])
def test_what_the_provider_does_not_honour_is_refused_naming_both(name: str) -> None:
    field = ROWS[name].field
    without = msgspec.structs.replace(INFO, supported=INFO.supported - {field})
    if field == "max_tokens":
        return  # every provider honours it
    error = refusal(without, **{name: VALUES[name][0]})
    known_as = {"guide_type": "guided_decoding_guide_type", "guide": "guided_decoding_guide"}.get(field, field)
    assert error.facts["field"] == known_as
    assert error.facts["provider"] == "toy"
    shown = f" ({error.facts['value']})" if "value" in error.facts else ""
    assert error.message == f"{known_as}{shown} is not supported by the provider 'toy'; leave it out"


def test_a_provider_may_say_why_it_cannot_and_what_to_do() -> None:
    without = msgspec.structs.replace(
        INFO, supported=frozenset({"max_tokens"}), why_not={"seed": "it rolls its own dice; leave it out"}
    )
    error = refusal(without, seed=3)
    assert error.message == "seed (3) is not supported by the provider 'toy'; it rolls its own dice; leave it out"


def test_a_default_may_be_sent_to_a_provider_that_does_not_honour_it() -> None:
    # As upstream's clients always do: beam_width 1, for one.
    asking_for_nothing = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
    names = {
        name: asking_for_nothing[row.field]
        for name, row in ROWS.items()
        if row.is_scalar and isinstance(asking_for_nothing.get(row.field), int | float)
    }
    assert len(names) > 12
    assert decode(BARE, **names) == decode(BARE)
    assert decode(BARE, runtime_top_p_reset_ids=-1) == decode(BARE)


def test_a_stop_request_needs_no_sensible_prompt() -> None:
    # Upstream's clients send some ids with it, and some send none; only its id counts.
    assert decode(input_ids=[], stop=True).options.stop
    assert decode(input_ids=[100] * 20, request_output_len=1, stop=True).options.stop
    assert decode(input_ids=[-7], input_lengths=0, request_output_len=0, stop=True).options.stop
    assert refusal(input_ids=[], stop=False).facts["field"] == "input_ids"


def test_a_request_without_a_length_of_output_is_refused() -> None:
    assert refusal(request_output_len=None, end_id=3).facts == {"field": "request_output_len"}


TABLE = {"prompt_embedding_table": [[0.5, 1.0], [1.5, 2.0]]}
MISFITS: list[tuple[dict[str, object], str, str]] = [
    (TABLE | {"prompt_vocab_size": 3}, "prompt_vocab_size", "must be 2, the rows of prompt_embedding_table"),
    ({"prompt_vocab_size": 3}, "prompt_vocab_size", "needs prompt_embedding_table"),
    ({"lora_weights": [[0.5]]}, "lora_weights", "needs lora_config"),
    ({"lora_weights": [[0.5]], "lora_config": [[0, 0, 8]]}, "lora_weights", "needs lora_task_id"),
    ({"lora_name": [b"a"], "lora_task_id": 1}, "lora_name", "left out beside lora_task_id"),
    ({"draft_input_ids": [5, 6], "draft_logits": [[0.5] * 100]}, "draft_logits", "of shape [2, 100]"),
    ({"draft_acceptance_threshold": 0.5}, "draft_acceptance_threshold", "needs draft_logits"),
    ({"use_draft_logits": True}, "use_draft_logits", "needs num_draft_tokens"),
    ({"decoder_input_ids": [5, 100]}, "decoder_input_ids", "0 to 99"),
    ({"decoder_input_ids": [5], "decoder_input_lengths": 2}, "decoder_input_lengths", "must be 1"),
    ({"skip_cross_attn_blocks": True}, "skip_cross_attn_blocks", "needs encoder_input_features"),
    ({"mrope_position_deltas": 3}, "mrope_position_deltas", "needs mrope_rotary_cos_sin"),
    ({"encoder_input_features": [[math.nan]]}, "encoder_input_features", "must be finite"),
    (RANGES | {"retention_token_range_ends": [4]}, "retention_token_range_ends", "has 1 values for 2 starts"),
    (RANGES | {"retention_token_range_ends": [4, 4]}, "retention_token_range_ends", "must be above their starts"),
    (RANGES | {"retention_token_range_priorities": [4, 101]}, "retention_token_range_priorities", "0 to 100"),
    ({"beam_width": 2, "streaming": True}, "beam_width", "does not go with stream"),
    ({"beam_width": 2, "runtime_top_k": 5}, "beam_width", "does not go with top_k or top_p"),
    ({"beam_width": 2, "num_return_sequences": 3}, "num_return_sequences", "1 to 2, the beams"),
    ({"beam_width": 129}, "beam_width", "1 to 32"),
]


@pytest.mark.parametrize(("values", "field", "allowed"), MISFITS, ids=lambda value: str(value)[:40])
def test_parts_that_do_not_fit_are_refused_by_name(values: dict[str, object], field: str, allowed: str) -> None:
    error = refusal(**values)
    assert error.facts["field"] == field
    assert allowed in error.message


def test_more_logits_than_a_response_may_hold_are_refused() -> None:
    roomy = msgspec.structs.replace(INFO, vocab_size=100_000, max_seq_len=2000)  # 400 kB a token, 256 MiB in all
    assert decode(roomy, return_generation_logits=True, request_output_len=671).sampling.max_tokens == 671
    error = refusal(roomy, return_generation_logits=True, request_output_len=672)
    assert error.facts["field"] == "max_tokens"
    assert "logits of 672 tokens" in error.message
    assert (
        "logits of 800 tokens"
        in refusal(roomy, return_generation_logits=True, beam_width=2, request_output_len=400).message
    )
    assert "logits of 700 tokens" in refusal(roomy, return_context_logits=True, input_ids=[5] * 700).message
    drafts = refusal(roomy, num_draft_tokens=700, use_draft_logits=True).message
    assert "logits of 700 tokens, all beams and drafts together" in drafts


def test_an_empty_range_list_asks_for_nothing_and_false_needs_no_encoder() -> None:
    assert decode(retention_token_range_starts=[], skip_cross_attn_blocks=False) == decode()


def test_ids_behind_the_vocabulary_stand_for_rows_of_the_prompts_own_table() -> None:
    assert decode(**TABLE, input_ids=[5, 100, 101]).options.input_ids == [5, 100, 101]
    assert "0 to 101" in refusal(**TABLE, input_ids=[5, 102]).message
    assert "0 to 99" in refusal(input_ids=[5, 100]).message


def test_text_that_became_ids_is_refused_by_the_name_that_the_client_of_the_ensemble_knows() -> None:
    context = list(pack(StreamContext(1))[0])
    error = refusal(BARE, decoder_input_ids=[12, 5], stream_context=context)
    assert error.facts == {"field": "decoder_text_input", "provider": "toy"}, "no ids: the client has sent none"
    assert error.message == "decoder_text_input is not supported by the provider 'toy'; leave it out"
    assert refusal(BARE, decoder_input_ids=[5]).facts["field"] == "decoder_input_ids"


def test_a_context_only_request_is_one_where_the_provider_can() -> None:
    tensors = {name: array(name, value) for name, value in {"input_ids": [5], "request_output_len": 4}.items()}
    assert RequestDecoder(INFO).decode(tensors, is_context_only=True).sampling.is_context_only
    with pytest.raises(RequestError, match=r"is_context_only .* is not supported by the provider 'toy'"):
        RequestDecoder(BARE).decode(tensors, is_context_only=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"priority": 0}, "priority must be 1 to 3; got 0"),
        ({"priority": 4}, "priority must be 1 to 3; got 4"),
        ({"deadline_ms": 0}, "deadline_ms must be at least 1; got 0"),
        ({"queue_timeout_ms": -5}, "queue_timeout_ms must be at least 1; got -5"),
        ({"tenant": [b"\xff"]}, "tenant must be UTF-8 text"),
        ({"tenant": [b"x" * 129]}, "tenant has 129 characters, and may have 128"),
    ],
)
def test_a_wish_about_when_to_run_that_makes_no_sense_is_refused(values: dict[str, object], message: str) -> None:
    assert message in str(refusal(**values))


@pytest.mark.parametrize("name", [row.engine for row in SCHEDULING_INPUTS])
def test_without_admission_a_wish_about_when_to_run_is_refused_and_not_ignored(name: str) -> None:
    info = msgspec.structs.replace(INFO, is_admitting=False)
    error = refusal(info, **{name: VALUES[name][0]})
    assert error.facts["field"] == name
    assert "name `admission` in it" in str(error)


@pytest.mark.parametrize(
    ("tensors", "field"),
    [
        ({"continued_ids": [8, 100]}, "continued_ids"),
        ({"continued_ids": [-1]}, "continued_ids"),
        ({"continued_ids": [8, 9, 8, 9]}, "continued_ids"),  # max_tokens are 4
        ({"continued_ids": [8], "num_return_sequences": 2}, "num_return_sequences"),
        ({"continued_ids": [8], "return_log_probs": True}, "return_log_probs"),
        ({"continued_ids": [8], "repetition_penalty": 1.5}, "repetition_penalty"),
        ({"continued_ids": [8], "beam_width": 2}, "beam_width"),
        ({"continued_ids": [8], "guided_decoding_guide_type": [b"json"]}, "guided_decoding_guide_type"),
    ],
    ids=["vocabulary", "negative", "at its end", "several", "log probs", "penalty", "beams", "guide"],
)
def test_an_answer_that_could_not_go_on_as_it_would_have_is_refused(tensors: dict[str, object], field: str) -> None:
    error = refusal(**tensors)
    assert error.facts["field"] == field
    assert "continued_ids" in str(error)


def test_an_answer_goes_on_within_the_limit_that_it_began_with() -> None:
    request = decode(continued_ids=[8, 9, 8], min_tokens=2, end_id=5, runtime_top_p=0.5, seed=3)
    assert request.options.continued_ids == [8, 9, 8]
    assert request.sampling.max_tokens == 4
