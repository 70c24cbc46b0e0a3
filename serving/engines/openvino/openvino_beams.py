# SPDX-License-Identifier: Apache-2.0
"""Beam search in OpenVINO's words. All beams can be read in the last step, in no order, and not before."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import openvino_genai

from serving.engines.seam.base import Beam, EngineInfo, SamplingParams
from trireme.base.errors import RequestError

if TYPE_CHECKING:
    from serving.engines.openvino.openvino_pipeline import Output

# What its beam search refuses, by the value that asks for nothing.
_NOT_WITH_BEAMS = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "guide_type": None}


def set_beams(config: openvino_genai.GenerationConfig, sampling: SamplingParams) -> None:
    """Have a request searched with beams; with one beam nothing is set.

    Diversity is between groups there, so each beam is a group of its own where it is asked for.
    """
    if sampling.beam_width == 1:
        return
    config.num_beams = config.num_return_sequences = sampling.beam_width
    config.length_penalty = sampling.length_penalty
    if sampling.beam_search_diversity_rate:
        config.num_beam_groups = sampling.beam_width
        config.diversity_penalty = sampling.beam_search_diversity_rate
    criteria = openvino_genai.StopCriteria
    config.stop_criteria = criteria.EARLY if sampling.early_stopping else criteria.HEURISTIC


def refuse_unsearchable(sampling: SamplingParams, info: EngineInfo) -> None:
    """Check what does not go together with beams.

    Raises:
        RequestError: penalties, a guide; log probabilities of diverse beams, for there OpenVINO tells them with the
            penalties in them.
    """
    if sampling.beam_width == 1:
        return
    wrong = next((name for name, unset in _NOT_WITH_BEAMS.items() if getattr(sampling, name) != unset), None)
    if wrong is None and sampling.return_log_probs and sampling.beam_search_diversity_rate:
        wrong = "beam_search_diversity_rate"
    if wrong is not None:
        raise RequestError(
            f"beam_width ({sampling.beam_width}) does not go with {wrong} on the provider {info.provider!r}; "
            "leave one of them out",
            field="beam_width",
            value=sampling.beam_width,
            provider=info.provider,
        )


def best_first(outputs: Iterable["Output"]) -> list["Output"]:
    """Return the beams of a finished request, the best first."""
    return sorted(outputs, key=lambda output: -output.score)


def as_beam(output: "Output", *, has_log_probs: bool) -> Beam:
    """Return a beam; OpenVINO tells its log probabilities whether they were asked for or not."""
    log_probs = output.generated_log_probs
    return Beam(output.generated_ids, sum(log_probs), log_probs if has_log_probs else None)
