# SPDX-License-Identifier: Apache-2.0
"""The inputs of a request to the model beside its prompt, and to the KV cache; its sampling is in `base`.

Most requests have none of them, and a field at its default takes no byte on the way to the engine.
"""

from typing import Annotated

import msgspec

from serving.engines.seam.packed_array import PackedArray

Count = Annotated[int, msgspec.Meta(ge=0)]
# TensorRT-LLM's range; 100 is kept longest. -1 where a duration or an end may be open.
Priority = Annotated[int, msgspec.Meta(ge=0, le=100)]
DurationMs = Annotated[int, msgspec.Meta(ge=-1)]


class ModelInputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The inputs by the names of the contract; plural or not, a request is one prompt."""

    # Prompt tuning: ids from the vocabulary's size on stand for rows of the table ``[prompt_vocab_size, hidden]``.
    prompt_embedding_table: PackedArray | None = None
    prompt_vocab_size: Count | None = None
    prompt_table_extra_ids: tuple[int, ...] = ()  # tell apart equal virtual tokens of different tables

    # LoRA: weights ``[modules, size]`` and config ``[modules, 3]`` with the first request of a task, then its id alone.
    lora_task_id: int | None = None
    lora_name: str | None = None  # ours: of an adapter that the deployment's folder holds
    lora_weights: PackedArray | None = None
    lora_config: PackedArray | None = None

    # Draft tokens, to be verified: with logits ``[drafts, vocab]`` by their probability, else as what would come.
    draft_input_ids: tuple[int, ...] = ()
    draft_logits: PackedArray | None = None
    draft_acceptance_threshold: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] | None = None

    # Encoder-decoder models.
    decoder_input_ids: tuple[int, ...] = ()
    decoder_input_lengths: Count | None = None
    encoder_input_features: PackedArray | None = None  # [frames, size]
    encoder_output_lengths: Count | None = None
    cross_attention_mask: PackedArray | None = None  # [decoder tokens, encoder tokens] bool
    skip_cross_attn_blocks: bool = False

    # Rotary positions of multimodal prompts.
    mrope_rotary_cos_sin: PackedArray | None = None
    mrope_position_deltas: int | None = None

    # Disaggregated serving: what the prefill's server gave, for the decode's; and that this one is to prefill only.
    context_phase_params: bytes | None = None
    is_context_only: bool = False

    # Which blocks stay in the KV cache for reuse, how dearly and how long.
    retention_token_range_starts: tuple[Count, ...] = ()
    retention_token_range_ends: tuple[int, ...] = ()  # -1: to the end of the prompt
    retention_token_range_priorities: tuple[Priority, ...] = ()
    retention_token_range_durations_ms: tuple[DurationMs, ...] = ()  # none, or -1: without limit
    retention_decode_priority: Priority | None = None
    retention_decode_duration_ms: DurationMs | None = None
