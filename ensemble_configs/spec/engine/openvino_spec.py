# SPDX-License-Identifier: Apache-2.0
"""An OpenVINO engine, as typed data, and which of its ways to draft tokens go together."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Number, Positive
from ensemble_configs.spec.engine.provider_spec import BATCH_WAIT, FixedCacheSpec


class OpenVinoEngineSpec(FixedCacheSpec):
    """OpenVINO GenAI continuous batching on the CPU."""

    provider: Literal["openvino"]
    dir: Path = Field(description="folder with openvino_model.xml")
    batch_wait_ms: Number = Field(
        default=1.0,
        ge=0,
        le=100,
        description=BATCH_WAIT,
    )
    num_threads: Positive | None = Field(default=None, le=1024, description="CPU threads; none: all cores")
    kv_cache_precision: Literal["auto", "u8", "u4", "f16", "bf16"] = Field(
        default="auto", description="number format of the KV cache; auto: OpenVINO's choice"
    )
    execution_mode: Literal["performance", "accuracy"] = Field(
        default="performance",
        description="accuracy: all in f32, where the requests beside one hardly change its answer; slower",
    )
    is_prefix_caching: Boolean = Field(default=True, description="keep KV blocks of finished prompts for reuse")
    lora_file: Path | None = Field(
        default=None, description="a low-rank adapter (safetensors, as PEFT writes it) for all requests"
    )
    draft_dir: Path | None = Field(default=None, description="folder of a small model that drafts tokens for this one")
    max_ngram_size: Positive | None = Field(
        default=None, description="draft what followed the last tokens, up to so many, earlier in the prompt"
    )
    num_assistant_tokens: Positive | None = Field(default=None, description="tokens to draft in a step; none: 4")

    @property
    def kv_format(self) -> str:
        """Number format of the KV cache: `kv_cache_precision`, or `f32` where the whole engine computes in that."""
        return "f32" if self.execution_mode == "accuracy" else self.kv_cache_precision

    @property
    def num_draft_tokens(self) -> int:
        """Tokens to draft in a step; 0 without speculative decoding."""
        if self.draft_dir is None and self.max_ngram_size is None:
            return 0
        return self.num_assistant_tokens or 4

    @property
    def max_tokens_per_step(self) -> int:
        """With all drafts accepted."""
        return 1 + self.num_draft_tokens

    @model_validator(mode="after")
    def _an_accurate_cache_is_f32(self) -> "OpenVinoEngineSpec":
        # OpenVINO 2026.4 keeps an f32 cache then, whatever it is asked for.
        if self.execution_mode == "accuracy" and self.kv_cache_precision != "auto":
            raise ValueError("execution_mode: accuracy has a KV cache of f32; leave kv_cache_precision at auto")
        return self

    @model_validator(mode="after")
    def _drafts_come_from_one_place(self) -> "OpenVinoEngineSpec":
        if self.draft_dir is not None and self.max_ngram_size is not None:
            raise ValueError("draft_dir and max_ngram_size exclude each other; keep one")
        if self.draft_dir is not None and self.is_prefix_caching:
            # OpenVINO 2026.4 breaks when sampling rejects a draft in a block that it has hashed for reuse.
            raise ValueError("draft_dir needs is_prefix_caching: false")
        if self.num_assistant_tokens is not None and not self.num_draft_tokens:
            raise ValueError("num_assistant_tokens needs draft_dir or max_ngram_size")
        return self

    @model_validator(mode="after")
    def _lookups_fit_a_step(self) -> "OpenVinoEngineSpec":
        # OpenVINO 2026.4 pads what it looked up to its full number, and breaks when a step has no room for all of it.
        num_step_tokens = self.max_num_seqs * (1 + self.num_draft_tokens)
        if self.max_ngram_size is not None and num_step_tokens > self.max_num_batched_tokens:
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) < max_num_seqs ({self.max_num_seqs}) * "
                f"(1 + {self.num_draft_tokens} draft tokens); raise it to {num_step_tokens} or lower max_num_seqs"
            )
        return self
