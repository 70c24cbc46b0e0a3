# SPDX-License-Identifier: Apache-2.0
"""Default limits of a step for engines of TensorRT-LLM: as many sequences and tokens as upstream takes.

Source: `BuildConfig` of tensorrt_llm/builder.py and `TorchLlmArgs` of llmapi/llm_args.py, 1.0 to 1.2: 2048 and 8192.
"""

from typing import NamedTuple, TypeVar

from pydantic import BaseModel

Batched = TypeVar("Batched", bound=BaseModel)

UPSTREAM_SEQS, UPSTREAM_TOKENS = 2048, 8192
_DEFAULTS = {"max_num_seqs": UPSTREAM_SEQS, "max_num_batched_tokens": UPSTREAM_TOKENS}


class StepLimits(NamedTuple):
    """Sequences and tokens that a step takes at most."""

    num_seqs: int
    num_tokens: int


# From this many GiB of a GPU on. Upstream has one default for all GPUs; its buffers for 2048 sequences (a row of logits
# in 32 bits for each, several times) are 4 % of 80 GB and would be 15 % of 24 GB. So the smaller ones have shares of
# it, down to 2048 tokens, below which upstream's trtllm-bench does not go either (`finetune_setting` in its tuning.py).
_BY_MEMORY_GIB = (
    (70.0, StepLimits(UPSTREAM_SEQS, UPSTREAM_TOKENS)),
    (35.0, StepLimits(1024, 4096)),
    (0.0, StepLimits(512, 2048)),
)


def step_limits(memory_gib: float) -> StepLimits:
    """Return the defaults of a recipe for GPUs of this memory."""
    return next(limits for least, limits in _BY_MEMORY_GIB if memory_gib >= least)


def is_default(field: str, asked: int) -> bool:
    """Return whether a deployment's value is upstream's default, which asks for no more than was built."""
    return _DEFAULTS.get(field) == asked


def within_build(spec: Batched, *, num_seqs: int | None, num_tokens: int | None) -> Batched:
    """Return an engine's spec in which defaults are lowered to what the engine was built for, as upstream lowers them.

    Args:
        spec: of a deployment, with `max_num_seqs` and `max_num_batched_tokens`.
        num_seqs: sequences of a step that the engine was built for; None: no limit.
        num_tokens: tokens of a step that the engine was built for; None: no limit.
    """
    built = {"max_num_seqs": num_seqs, "max_num_batched_tokens": num_tokens}
    changes = {
        field: limit
        for field, limit in built.items()
        if limit is not None and is_default(field, getattr(spec, field)) and limit < getattr(spec, field)
    }
    return spec.model_copy(update=changes) if changes else spec
