# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding of TensorRT-LLM and vLLM as typed data: a spec for each method."""

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, Integer, Number, Positive, Spec


class LookaheadSpec(Spec):
    """Lookahead decoding: n-grams guessed by the model itself, in an engine that was built for it."""

    method: Literal["lookahead"]
    window_size: Positive = Field(description="n-grams guessed at once")
    ngram_size: Positive = Field(description="tokens of an n-gram")
    verification_set_size: Positive = Field(description="n-grams verified at once")

    @property
    def max_draft_len(self) -> int:
        """Return the tokens that one step may verify, the real one left out."""
        return lookahead_drafts(self.window_size, self.ngram_size, self.verification_set_size)


def lookahead_drafts(window_size: int, ngram_size: int, verification_set_size: int) -> int:
    """Return the tokens that one step of lookahead decoding may verify, the real one left out.

    Source: TensorRT-LLM's example of lookahead: (n - 2) + (w - 1 + v)(n - 1), for an n-gram of at least 2.
    """
    return max(ngram_size - 2, 0) + (window_size - 1 + verification_set_size) * (ngram_size - 1)


class MedusaSpec(Spec):
    """Medusa heads in the engine."""

    method: Literal["medusa"]
    max_draft_len: Positive = Field(description="draft tokens of a step")
    num_heads: Positive = Field(description="Medusa heads of the engine")
    choices: tuple[tuple[Integer, ...], ...] | None = Field(
        default=None, description="tree of drafts; none: the engine's"
    )


class EagleSpec(Spec):
    """EAGLE-1 or -2, built into the engine."""

    method: Literal["eagle"]
    max_draft_len: Positive = Field(description="draft tokens of a step")
    num_layers: Positive | None = Field(default=None, description="layers that draft; none: the engine's")
    choices: tuple[tuple[Integer, ...], ...] | None = Field(
        default=None, description="tree of drafts; none: the engine's"
    )
    is_greedy_sampling: Boolean = Field(
        default=True, description="accept drafts that equal the most likely token; false: upstream's typical acceptance"
    )
    posterior_threshold: Number | None = Field(
        default=None, ge=0, le=1, description="threshold of typical acceptance; none: upstream's"
    )
    is_dynamic_tree: Boolean = Field(default=False, description="make the tree of drafts while decoding (EAGLE-2)")
    dynamic_tree_max_top_k: Positive | None = Field(
        default=None, description="branches of a dynamic tree; none: upstream's choice"
    )


class NGramSpec(Spec):
    """Drafts looked up in the prompt and the output so far."""

    method: Literal["ngram"]
    max_draft_len: Positive = Field(description="draft tokens of a step")
    max_matching_ngram_size: Positive = Field(description="longest n-gram that is looked up")
    is_keeping_all: Boolean = Field(default=True, description="keep every match of an n-gram, not one")
    is_using_oldest: Boolean = Field(default=True, description="take the oldest match first")
    is_public_pool: Boolean = Field(default=True, description="requests share their n-grams")


class PromptLookupSpec(Spec):
    """Drafts looked up in the request's own prompt and output, as vLLM does it."""

    method: Literal["ngram"]
    max_draft_len: Positive = Field(description="draft tokens of a step")
    max_matching_ngram_size: Positive = Field(default=5, description="longest n-gram that is looked up")
    min_matching_ngram_size: Positive = Field(default=2, description="shortest n-gram that is looked up")

    @model_validator(mode="after")
    def _sizes_are_in_order(self) -> "PromptLookupSpec":
        if self.min_matching_ngram_size > self.max_matching_ngram_size:
            raise ValueError(
                f"min_matching_ngram_size ({self.min_matching_ngram_size}) is above max_matching_ngram_size "
                f"({self.max_matching_ngram_size})"
            )
        return self


class MtpSpec(Spec):
    """Multi-token prediction layers of the model itself (DeepSeek)."""

    method: Literal["mtp"]
    num_nextn_predict_layers: Positive = Field(default=1, description="layers that draft, one token each")
    is_vanilla: Boolean = Field(default=False, description="upstream's use_mtp_vanilla")
    is_relaxed_for_thinking: Boolean = Field(default=False, description="accept near misses while the model thinks")
    relaxed_top_k: Positive = Field(default=1, description="candidates that count as near misses")
    relaxed_delta: Number = Field(default=0.0, ge=0, le=1, description="of probability")


class Eagle3Spec(Spec):
    """EAGLE-3 with a draft checkpoint."""

    method: Literal["eagle3"]
    dir: Path = Field(description="folder of the draft checkpoint")
    max_draft_len: Positive = Field(description="draft tokens of a step")
    is_one_model: Boolean = Field(default=True, description="draft and target run as one model")


class DraftTargetSpec(Spec):
    """Drafts of a smaller model."""

    method: Literal["draft_target"]
    dir: Path = Field(description="folder of the draft checkpoint")
    max_draft_len: Positive = Field(description="draft tokens of a step")


def accepted_at_once(
    speculation: LookaheadSpec
    | MedusaSpec
    | EagleSpec
    | NGramSpec
    | PromptLookupSpec
    | MtpSpec
    | Eagle3Spec
    | DraftTargetSpec
    | None,
) -> int:
    """Return the tokens that a step may add to a sequence, with all drafts accepted."""
    match speculation:
        case None:
            return 1
        case LookaheadSpec():
            return speculation.ngram_size
        case MtpSpec():
            return 1 + speculation.num_nextn_predict_layers
        case _:
            return 1 + speculation.max_draft_len
