# SPDX-License-Identifier: Apache-2.0
"""The work of a request, as an engine's account has it: what is taken out of times before the arms are compared.

A prefill is as long as what it computes; a step of decoding is as long as the batch that it serves, the prompts that it
prefills beside, and the context that it reads. Each is a line in a logarithm that may bend: what a GPU does with twice
the work depends on how much it was. What is not known of a request has no part in its prediction.
"""

import math

from clients.rollout_gate.statistics.equal_work import broken_line
from ensemble_configs.split.outcome import Outcome

PROMPT_KNOTS = (5.0, 6.5, 8.0, 9.5, 11.0)  # 32 to 2,048 tokens
SEQS_KNOTS = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)  # 2 to 64 sequences
STEP_PROMPT_KNOTS = (5.0,)
KV_KNOTS = (9.0, 13.0)
_CHARS_PER_TOKEN_BITS = 4.0  # stratum 1 begins at 64 characters, some 16 tokens


def prefill_work(outcome: Outcome) -> tuple[float, ...]:
    """Return the features of the work before the first token: tokens to compute, a cache hit, the batch."""
    cached = outcome.num_cached_tokens or 0
    if outcome.num_prompt_tokens is None:
        size = outcome.stratum + _CHARS_PER_TOKEN_BITS - 1
    else:
        size = math.log2(1 + max(outcome.num_prompt_tokens - cached, 0))
    return (*broken_line(size, PROMPT_KNOTS), float(cached > 0), _log2(outcome.prefill_seqs))


def decode_work(outcome: Outcome) -> tuple[float, ...]:
    """Return the features of the work between tokens: sequences, prompt tokens and context of the steps."""
    return (
        *broken_line(_log2(outcome.step_seqs), SEQS_KNOTS),
        *broken_line(_log2_1(outcome.step_prompt_tokens), STEP_PROMPT_KNOTS),
        *broken_line(_log2_1(outcome.step_kv_tokens), KV_KNOTS),
    )


def prompt_work(outcome: Outcome) -> tuple[float, ...]:
    """Return the feature of an answer's length: the length of its prompt."""
    if outcome.num_prompt_tokens is None:
        return (outcome.stratum + _CHARS_PER_TOKEN_BITS - 1,)
    return (math.log2(1 + outcome.num_prompt_tokens),)


def _log2(value: float | None) -> float:
    return math.log2(max(value, 1.0)) if value is not None else 0.0


def _log2_1(value: float | None) -> float:
    return math.log2(1 + value) if value is not None else 0.0
