# SPDX-License-Identifier: Apache-2.0
"""The capabilities of a provider, and their conditions on the deployment: one source for refusals and the documents.

Names are fields of `SamplingParams`; among the refusals also outputs of the contract that a provider cannot fill.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

# Fields that a provider has all of or none.
BEAM_FIELDS = ("beam_width", "length_penalty", "early_stopping", "beam_search_diversity_rate")
DISAGGREGATION_FIELDS = ("context_phase_params", "is_context_only")
DRAFT_FIELDS = ("draft_input_ids", "draft_logits", "draft_acceptance_threshold")
ENCODER_DECODER_FIELDS = (
    "decoder_input_ids", "decoder_input_lengths", "encoder_input_features", "encoder_output_lengths",
    "cross_attention_mask", "skip_cross_attn_blocks",
)  # fmt: skip
LOOKAHEAD_FIELDS = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")
LORA_FIELDS = ("lora_task_id", "lora_name", "lora_weights", "lora_config")
MROPE_FIELDS = ("mrope_rotary_cos_sin", "mrope_position_deltas")
PROMPT_TABLE_FIELDS = ("prompt_embedding_table", "prompt_vocab_size", "prompt_table_extra_ids")
RETENTION_FIELDS = (
    "retention_token_range_starts", "retention_token_range_ends", "retention_token_range_priorities",
    "retention_token_range_durations_ms", "retention_decode_priority", "retention_decode_duration_ms",
)  # fmt: skip
KV_BLOCK_OUTPUTS = ("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks")


class Condition(NamedTuple):
    """A condition that a deployment must meet for a field."""

    words: str  # for the documents, after "works": with `engine.lora`
    is_met: Callable[[Any], bool]  # by the provider's spec
    why_not: str  # where it is not: the reason and the way out


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of one provider."""

    supported: frozenset[str]
    why_not: Mapping[str, str]
    conditions: Mapping[str, Condition] = field(default_factory=dict)

    def unmet(self, spec: object) -> dict[str, str]:
        """Return the fields that this deployment does not support though the provider can, with the reasons."""
        return {name: one.why_not for name, one in self.conditions.items() if not one.is_met(spec)}
