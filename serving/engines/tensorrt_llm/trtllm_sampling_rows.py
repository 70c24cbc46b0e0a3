# SPDX-License-Identifier: Apache-2.0
"""The argument of TensorRT-LLM that each field of ours becomes, of its SamplingParams or of generate_async."""

from typing import NamedTuple

from serving.engines.seam.capabilities import DISAGGREGATION_FIELDS, RETENTION_FIELDS


class Row(NamedTuple):
    """A field that needs no more than a name."""

    field: str  # of SamplingParams
    argument: str  # of upstream's SamplingParams
    unset: object = None  # the value that leaves upstream's own default, which means the same
    is_for_greedy: bool = True
    needs_trtllm_sampler: bool = False  # in PyTorch: TorchSampler of 1.2 does not read it


ROWS = (
    Row("max_tokens", "max_tokens"),
    Row("min_tokens", "min_tokens", unset=0),
    Row("temperature", "temperature", is_for_greedy=False),
    Row("top_k", "top_k", unset=0, is_for_greedy=False),
    Row("top_p", "top_p", unset=0.0, is_for_greedy=False),
    Row("seed", "seed", is_for_greedy=False, needs_trtllm_sampler=True),
    Row("top_p_min", "top_p_min", unset=0.0, is_for_greedy=False, needs_trtllm_sampler=True),
    Row("top_p_decay", "top_p_decay", unset=1.0, is_for_greedy=False, needs_trtllm_sampler=True),
    Row("top_p_reset_id", "top_p_reset_ids", is_for_greedy=False, needs_trtllm_sampler=True),
    Row("repetition_penalty", "repetition_penalty", unset=1.0, needs_trtllm_sampler=True),
    Row("presence_penalty", "presence_penalty", unset=0.0, needs_trtllm_sampler=True),
    Row("frequency_penalty", "frequency_penalty", unset=0.0, needs_trtllm_sampler=True),
    Row("length_penalty", "length_penalty", unset=1.0, needs_trtllm_sampler=True),
    Row("beam_search_diversity_rate", "beam_search_diversity_rate", unset=0.0, needs_trtllm_sampler=True),
    Row("early_stopping", "early_stopping", needs_trtllm_sampler=True),
    Row("return_context_logits", "return_context_logits", unset=False),
    Row("return_generation_logits", "return_generation_logits", unset=False),
)

# Fields that take more than a name, by the argument that they need; `trtllm_sampling` makes it.
_MADE = {
    "end_id": "end_id",
    "bad_words": "bad_token_ids",
    "embedding_bias": "embedding_bias",
    "return_log_probs": "logprobs",
    "guide_type": "guided_decoding",
    "guide": "guided_decoding",
    "lookahead_window_size": "lookahead_config",
    "lookahead_ngram_size": "lookahead_config",
    "lookahead_verification_set_size": "lookahead_config",
    "beam_width": "use_beam_search",
}

# Arguments of generate_async itself.
_CALL = (
    {"lora_task_id": "lora_request", "lora_name": "lora_request"}
    | dict.fromkeys(RETENTION_FIELDS, "kv_cache_retention_config")
    | dict.fromkeys(DISAGGREGATION_FIELDS, "disaggregated_params")
)
ARGUMENTS = {row.field: row.argument for row in ROWS} | _MADE | _CALL
FOR_TRTLLM_SAMPLER = frozenset({row.field for row in ROWS if row.needs_trtllm_sampler} | {"bad_words"})
