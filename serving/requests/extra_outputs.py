# SPDX-License-Identifier: Apache-2.0
"""The joining and cutting of a request's extra outputs, along with its chunks."""

from serving.engines.seam.base import Beam, ExtraOutputs
from serving.engines.seam.packed_array import first_rows, join_rows


def merged(earlier: ExtraOutputs | None, later: ExtraOutputs | None) -> ExtraOutputs | None:
    """Return the extra outputs of two successive chunks as one."""
    if earlier is None or later is None:
        return earlier or later
    logits = [part for part in (earlier.generation_logits, later.generation_logits) if part is not None]
    return ExtraOutputs(
        beams=later.beams or earlier.beams,
        context_logits=earlier.context_logits or later.context_logits,
        generation_logits=join_rows(logits) if logits else None,
        context_phase_params=later.context_phase_params or earlier.context_phase_params,
    )


def cut(extras: ExtraOutputs | None, num_tokens: int) -> ExtraOutputs | None:
    """Return the extra outputs of a chunk's first `num_tokens` tokens."""
    if extras is not None and extras.generation_logits is not None:
        extras.generation_logits = first_rows(extras.generation_logits, num_tokens)
    return extras


def cut_beam(beam: Beam, num_tokens: int) -> Beam:
    """Return a beam's first `num_tokens` tokens.

    The cumulative probability stays that of the whole beam, by which the search chose it.
    """
    logits = None if beam.generation_logits is None else first_rows(beam.generation_logits, num_tokens)
    log_probs = None if beam.log_probs is None else beam.log_probs[:num_tokens]
    return Beam(beam.token_ids[:num_tokens], beam.cum_log_prob, log_probs, logits)
