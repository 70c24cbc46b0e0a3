# SPDX-License-Identifier: Apache-2.0
"""Every tensor of the serving contract, once: its type, its dims, and its name at each model that it passes.

The names, types and dims are those of NVIDIA's `inflight_batcher_llm`, both generations of names; rows marked "ours"
are additions that a client of upstream never sees. `config.pbtxt` files are rendered from these rows, the adapters
decode by them, and a tensor whose `field` the provider does not honour is refused by name
(`serving.requests.engine_request`).

A new sampling parameter is one row here with a `field`, and that field on `serving.engines.seam.base.SamplingParams`.

Dims exclude the batch dimension: clients send ``[1, *dims]``.
"""

from collections.abc import Iterable
from dataclasses import dataclass

BOOL, UINT8, INT32, INT64, UINT64 = "TYPE_BOOL", "TYPE_UINT8", "TYPE_INT32", "TYPE_INT64", "TYPE_UINT64"
FP16, FP32, STRING = "TYPE_FP16", "TYPE_FP32", "TYPE_STRING"

# Ours, as a value of `max_tokens`: as many tokens as the prompt leaves of the model's `max_seq_len`.
AS_MANY_AS_FIT = -1


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor on its way; an empty name means that the model does not see it."""

    data_type: str
    dims: tuple[int, ...] = (1,)
    ensemble: str = ""  # at `tensorrt_llm_bls` too
    bls: str = ""  # at `tensorrt_llm_bls` alone
    preprocessing: str = ""
    engine: str = ""
    postprocessing: str = ""
    is_required: bool = False
    # The other input that makes up for this one where it is missing.
    instead: str = ""
    # One value for the engine step, whatever its shape.
    is_scalar: bool = False
    is_ragged: bool = False
    # The attribute of SamplingParams, Scheduling or ResponseOptions that an input ends up in, or that asks for an
    # output.
    field: str = ""
    # Why nothing takes it, where that holds for every provider.
    why_not: str = ""
    # Where the step that makes it declares other dims than the one that reads it.
    producer_dims: tuple[int, ...] | None = None

    def name_at(self, model: str) -> str:
        """Return the tensor's name at one model of the pipeline, "" where it does not pass."""
        if model == "tensorrt_llm_bls":
            return self.bls or self.ensemble
        return str(getattr(self, {"tensorrt_llm": "engine"}.get(model, model)))


def _prompt_input(name: str, preprocessing: str, data_type: str, dims: tuple[int, ...] = (1,), *, field: str) -> Tensor:
    """Return the row of what the client may send and the first step reads."""
    return Tensor(ensemble=name, data_type=data_type, dims=dims, preprocessing=preprocessing, field=field)


def _special_id(name: str, *, preprocessing: str) -> Tensor:
    """Return the row of a token id that the first step and the engine step read."""
    return Tensor(data_type=INT32, ensemble=name, preprocessing=preprocessing, engine=name, is_scalar=True, field=name)


def _option(name: str, data_type: str, *, engine: str = "", field: str = "") -> Tensor:
    """Return the row of a scalar that the client may send and the engine step reads."""
    return Tensor(data_type=data_type, ensemble=name, engine=engine or name, is_scalar=True, field=field)


def _array_option(name: str, data_type: str, dims: tuple[int, ...] = (1,), *, field: str) -> Tensor:
    """Return the row of an array that the client may send and the engine step reads."""
    return Tensor(data_type=data_type, dims=dims, ensemble=name, engine=name, is_ragged=True, field=field)


def _prompt_array(preprocessing: str, engine: str, data_type: str, dims: tuple[int, ...], *, field: str) -> Tensor:
    """Return the row of an array that the first step makes and the engine step reads."""
    return Tensor(
        preprocessing=preprocessing, data_type=data_type, dims=dims, engine=engine, is_ragged=True, field=field
    )


def _engine_only(
    name: str, data_type: str, dims: tuple[int, ...] = (1,), *, is_ragged: bool = True, field: str = ""
) -> Tensor:
    """Return the row of an input that upstream offers to direct callers of `tensorrt_llm` alone."""
    return Tensor(
        data_type=data_type, dims=dims, engine=name, is_ragged=is_ragged, is_scalar=not is_ragged, field=field
    )


# client -> ensemble -> preprocessing and/or tensorrt_llm
CLIENT_INPUTS: tuple[Tensor, ...] = (
    Tensor(
        ensemble="text_input",
        data_type=STRING,
        preprocessing="QUERY",
        is_required=True,
        instead="messages",
        field="input_ids",
    ),
    _prompt_input("messages", "MESSAGES", STRING, field="input_ids"),  # ours
    _prompt_input("tools", "TOOLS", STRING, field="input_ids"),  # ours
    Tensor(
        ensemble="max_tokens", data_type=INT32, preprocessing="REQUEST_OUTPUT_LEN", is_required=True, field="max_tokens"
    ),
    _prompt_input("decoder_text_input", "DECODER_QUERY", STRING, field="decoder_input_ids"),
    _prompt_input("bad_words", "BAD_WORDS_DICT", STRING, (-1,), field="bad_words"),
    _prompt_input("stop_words", "STOP_WORDS_DICT", STRING, (-1,), field="stop_words_list"),
    _special_id("end_id", preprocessing="END_ID"),
    _special_id("pad_id", preprocessing="PAD_ID"),
    _prompt_input("embedding_bias_words", "EMBEDDING_BIAS_WORDS", STRING, (-1,), field="embedding_bias"),
    _prompt_input("embedding_bias_weights", "EMBEDDING_BIAS_WEIGHTS", FP32, (-1,), field="embedding_bias"),
    _prompt_input("prompt_table_extra_id", "PROMPT_TABLE_EXTRA_ID", UINT64, field="prompt_table_extra_ids"),
    _option("stream", BOOL, engine="streaming", field="is_streaming"),
    _option("exclude_input_in_output", BOOL, field="exclude_input_in_output"),
    _option("temperature", FP32, field="temperature"),
    _option("top_k", INT32, engine="runtime_top_k", field="top_k"),
    _option("top_p", FP32, engine="runtime_top_p", field="top_p"),
    _option("seed", UINT64, field="seed"),
    _option("random_seed", UINT64, field="seed"),  # until v0.19
    _option("min_tokens", INT32, field="min_tokens"),
    _option("min_length", INT32, field="min_tokens"),  # until v0.19; genai-perf still sends it
    _option("return_num_input_tokens", BOOL, field="return_num_input_tokens"),
    _option("return_num_output_tokens", BOOL, field="return_num_output_tokens"),
    _option("return_num_cached_tokens", BOOL, field="return_num_cached_tokens"),  # ours
    _option("return_finish_reason", BOOL, field="return_finish_reason"),  # ours
    _option("return_release", BOOL, field="return_release"),  # ours
    _option("return_token_ids", BOOL, field="return_token_ids"),  # ours
    _option("num_return_sequences", INT32, field="num_return_sequences"),
    _option("beam_width", INT32, field="beam_width"),
    _option("length_penalty", FP32, engine="len_penalty", field="length_penalty"),
    _option("repetition_penalty", FP32, field="repetition_penalty"),
    _option("presence_penalty", FP32, field="presence_penalty"),
    _option("frequency_penalty", FP32, field="frequency_penalty"),
    _option("return_log_probs", BOOL, field="return_log_probs"),
    _option("return_context_logits", BOOL, field="return_context_logits"),
    _option("return_generation_logits", BOOL, field="return_generation_logits"),
    _option("return_perf_metrics", BOOL, field="return_perf_metrics"),
    _option("return_kv_cache_reuse_stats", BOOL, field="return_perf_metrics"),  # v0.16 to v0.18
    _option("prompt_vocab_size", INT32, field="prompt_vocab_size"),
    _option("lora_task_id", UINT64, field="lora_task_id"),
    _option("lora_name", STRING, field="lora_name"),  # ours
    _array_option("prompt_embedding_table", FP16, (-1, -1), field="prompt_embedding_table"),
    _array_option("lora_weights", FP16, (-1, -1), field="lora_weights"),
    _array_option("lora_config", INT32, (-1, 3), field="lora_config"),
    _array_option("continued_ids", INT32, (-1,), field="continued_ids"),  # ours
    _array_option("guided_decoding_guide_type", STRING, field="guide_type"),
    _array_option("guided_decoding_guide", STRING, field="guide"),
)

_TEXT_ONLY = "the models served here read text alone; describe the picture in text_input"

# Ours: client -> admission. Also as parameters of a request (`serving.requests.request_parameters`).
SCHEDULING_INPUTS: tuple[Tensor, ...] = (
    _option("priority", INT32, field="priority"),
    _option("tenant", STRING, field="tenant"),
    _option("deadline_ms", INT32, field="deadline_ms"),
    _option("queue_timeout_ms", INT32, field="queue_timeout_ms"),
)
CLIENT_INPUTS += SCHEDULING_INPUTS

# client -> tensorrt_llm_bls, beside the inputs of `ensemble`
BLS_INPUTS: tuple[Tensor, ...] = (
    Tensor(bls="num_draft_tokens", data_type=INT32, is_scalar=True, field="num_draft_tokens"),
    Tensor(bls="use_draft_logits", data_type=BOOL, is_scalar=True, field="use_draft_logits"),
    Tensor(bls="image_input", data_type=FP16, dims=(-1, 3, -1, -1), why_not=_TEXT_ONLY),
    Tensor(bls="image_bytes_input", data_type=UINT8, dims=(-1, -1, -1, -1), why_not=_TEXT_ONLY),
    Tensor(bls="image_url_input", data_type=STRING, why_not=_TEXT_ONLY),
    Tensor(bls="video_bytes_input", data_type=UINT8, dims=(-1, -1, -1, -1), why_not=_TEXT_ONLY),
)

# preprocessing -> tensorrt_llm
PROMPT_TENSORS: tuple[Tensor, ...] = (
    _prompt_array("INPUT_ID", "input_ids", INT32, (-1,), field="input_ids"),
    Tensor(
        preprocessing="REQUEST_INPUT_LEN",
        data_type=INT32,
        engine="input_lengths",
        is_required=True,
        is_scalar=True,
        field="input_length",
    ),
    Tensor(
        preprocessing="REQUEST_OUTPUT_LEN",
        data_type=INT32,
        producer_dims=(-1,),
        engine="request_output_len",
        is_required=True,
        is_scalar=True,
        field="max_tokens",
    ),
    # For callers of the steps by themselves: without a client's own they are the tokenizer's, and the engine knows
    # more ways for a text to end. So in the ensemble what a client sends goes to the engine, and these go nowhere.
    Tensor(preprocessing="OUT_END_ID", data_type=INT32, field="end_id"),
    Tensor(preprocessing="OUT_PAD_ID", data_type=INT32, field="pad_id"),
    _prompt_array("STOP_WORDS_IDS", "stop_words_list", INT32, (2, -1), field="stop_words_list"),
    _prompt_array("STREAM_CONTEXT", "stream_context", UINT8, (-1,), field="stream_context"),  # ours
    _prompt_array("BAD_WORDS_IDS", "bad_words_list", INT32, (2, -1), field="bad_words"),
    _prompt_array("DECODER_INPUT_ID", "decoder_input_ids", INT32, (-1,), field="decoder_input_ids"),
    Tensor(
        preprocessing="REQUEST_DECODER_INPUT_LEN",
        data_type=INT32,
        engine="decoder_input_lengths",
        is_scalar=True,
        field="decoder_input_lengths",
    ),
    _prompt_array("EMBEDDING_BIAS", "embedding_bias", FP32, (-1,), field="embedding_bias"),
    _prompt_array(
        "OUT_PROMPT_TABLE_EXTRA_IDS", "prompt_table_extra_ids", UINT64, (-1,), field="prompt_table_extra_ids"
    ),
)

# a direct caller -> tensorrt_llm
ENGINE_ONLY_INPUTS: tuple[Tensor, ...] = (
    Tensor(engine="stop", data_type=BOOL, is_scalar=True, field="stop"),
    _engine_only("encoder_input_features", FP16, (-1, -1), field="encoder_input_features"),
    _engine_only("encoder_output_lengths", INT32, is_ragged=False, field="encoder_output_lengths"),
    _engine_only("draft_input_ids", INT32, (-1,), field="draft_input_ids"),
    _engine_only("draft_logits", FP32, (-1, -1), field="draft_logits"),
    _engine_only("draft_acceptance_threshold", FP32, is_ragged=False, field="draft_acceptance_threshold"),
    _engine_only("runtime_top_p_min", FP32, is_ragged=False, field="top_p_min"),
    _engine_only("runtime_top_p_decay", FP32, is_ragged=False, field="top_p_decay"),
    _engine_only("runtime_top_p_reset_ids", INT32, is_ragged=False, field="top_p_reset_id"),
    _engine_only("early_stopping", BOOL, is_ragged=False, field="early_stopping"),
    _engine_only("beam_search_diversity_rate", FP32, is_ragged=False, field="beam_search_diversity_rate"),
    _engine_only("cross_attention_mask", BOOL, (-1, -1), field="cross_attention_mask"),
    Tensor(engine="mrope_rotary_cos_sin", data_type=FP32, dims=(-1,), field="mrope_rotary_cos_sin"),
    Tensor(engine="mrope_position_deltas", data_type=INT64, field="mrope_position_deltas"),
    _engine_only("context_phase_params", UINT8, (-1,), field="context_phase_params"),
    _engine_only("skip_cross_attn_blocks", BOOL, field="skip_cross_attn_blocks"),
    _engine_only("retention_token_range_starts", INT32, (-1,), field="retention_token_range_starts"),
    _engine_only("retention_token_range_ends", INT32, (-1,), field="retention_token_range_ends"),
    _engine_only("retention_token_range_priorities", INT32, (-1,), field="retention_token_range_priorities"),
    _engine_only("retention_token_range_durations_ms", INT32, (-1,), field="retention_token_range_durations_ms"),
    _engine_only("retention_decode_priority", INT32, field="retention_decode_priority"),
    _engine_only("retention_decode_duration_ms", INT32, field="retention_decode_duration_ms"),
    _engine_only("lookahead_window_size", INT32, field="lookahead_window_size"),
    _engine_only("lookahead_ngram_size", INT32, field="lookahead_ngram_size"),
    _engine_only("lookahead_verification_set_size", INT32, field="lookahead_verification_set_size"),
)

# tensorrt_llm -> postprocessing
TOKEN_TENSORS: tuple[Tensor, ...] = (
    Tensor(engine="output_ids", data_type=INT32, dims=(-1, -1), postprocessing="TOKENS_BATCH", is_required=True),
    Tensor(engine="sequence_length", data_type=INT32, dims=(-1,), postprocessing="SEQUENCE_LENGTH"),
    # Ours: which stream the tokens belong to, and how its text ends; sent only where `stream_context` came in.
    Tensor(engine="stream_state", data_type=UINT8, dims=(-1,), postprocessing="STREAM_STATE"),
)

# tensorrt_llm -> ensemble
RESULT_TENSORS: tuple[Tensor, ...] = (
    *(
        Tensor(engine=name, ensemble=name, data_type=data_type, dims=dims, field=field)
        for name, data_type, dims, field in (
            ("cum_log_probs", FP32, (-1,), "return_log_probs"),
            ("output_log_probs", FP32, (-1, -1), "return_log_probs"),
            ("context_logits", FP32, (-1, -1), "return_context_logits"),
            ("generation_logits", FP32, (-1, -1, -1), "return_generation_logits"),
            ("batch_index", INT32, (1,), ""),
            ("sequence_index", INT32, (1,), "num_return_sequences"),
            ("kv_cache_alloc_new_blocks", INT32, (1,), "return_perf_metrics"),
            ("kv_cache_reused_blocks", INT32, (1,), "return_perf_metrics"),
            ("kv_cache_alloc_total_blocks", INT32, (1,), "return_perf_metrics"),
            ("arrival_time_ns", INT64, (1,), "return_perf_metrics"),
            ("first_scheduled_time_ns", INT64, (1,), "return_perf_metrics"),
            ("first_token_time_ns", INT64, (1,), "return_perf_metrics"),
            ("last_token_time_ns", INT64, (1,), "return_perf_metrics"),
            ("acceptance_rate", FP32, (1,), "return_perf_metrics"),
            ("total_accepted_draft_tokens", INT32, (1,), "return_perf_metrics"),
            ("total_draft_tokens", INT32, (1,), "return_perf_metrics"),
            ("num_input_tokens", INT32, (1,), "return_num_input_tokens"),
            ("num_output_tokens", INT32, (1,), "return_num_output_tokens"),
            # Ours: with the last response, and not at all where the engine does not tell.
            ("num_cached_tokens", INT32, (1,), "return_num_cached_tokens"),
            ("finish_reason", STRING, (1,), "return_finish_reason"),  # ours
            # Ours: with the first response; it may be another one than the model's version.
            ("release", INT32, (1,), "return_release"),
            ("token_ids", INT32, (-1,), "return_token_ids"),  # ours: of this response, none of the prompt's
        )
    ),
    Tensor(engine="context_phase_params", data_type=UINT8, dims=(-1,), field="context_phase_params"),
)

# postprocessing -> ensemble
TEXT_TENSORS: tuple[Tensor, ...] = (
    Tensor(postprocessing="OUTPUT", ensemble="text_output", data_type=STRING, dims=(-1,)),
)


def named_at(model: str, *groups: Iterable[Tensor]) -> list[tuple[str, Tensor]]:
    """``(name, row)`` of every tensor in `groups` that the model sees, in the table's order."""
    return [(row.name_at(model), row) for group in groups for row in group if row.name_at(model)]


def inputs_of(model: str) -> list[tuple[str, Tensor]]:
    """Return the inputs of one model of the pipeline, by the names it knows them by."""
    groups = {
        "ensemble": (CLIENT_INPUTS,),
        "tensorrt_llm_bls": (CLIENT_INPUTS, BLS_INPUTS),
        "preprocessing": (CLIENT_INPUTS,),
        "tensorrt_llm": (PROMPT_TENSORS, CLIENT_INPUTS, ENGINE_ONLY_INPUTS),
        "postprocessing": (TOKEN_TENSORS,),
    }[model]
    return named_at(model, *groups)


def outputs_of(model: str) -> list[tuple[str, Tensor]]:
    """Return the outputs of one model of the pipeline, by the names it knows them by."""
    groups = {
        "ensemble": (TEXT_TENSORS, RESULT_TENSORS),
        "tensorrt_llm_bls": (TEXT_TENSORS, RESULT_TENSORS),
        "preprocessing": (PROMPT_TENSORS,),
        "tensorrt_llm": (TOKEN_TENSORS, RESULT_TENSORS),
        "postprocessing": (TEXT_TENSORS,),
    }[model]
    return named_at(model, *groups)
