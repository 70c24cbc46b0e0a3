# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding in OpenVINO's words: tokens proposed by a small model or looked up in the prompt, then verified.

Set for the whole engine by its deployment: OpenVINO wants the same of every request. What is accepted is what the model
would have chosen, so that greedy output stays as it was; sampled output follows another path than without.

OpenVINO 2026.4 loses requests that it preempts while it drafts: `openvino` admits only what fits to its end. While a
long prompt is in its prefill, a pipeline with a draft model makes no tokens for the others.
"""

from dataclasses import dataclass
from pathlib import Path

import openvino_genai

from ensemble_configs.engine_specs import OpenVinoEngineSpec
from ensemble_configs.errors import SpecError
from serving.engines.model_folder import load_model_folder


def draft_properties(spec: OpenVinoEngineSpec, scheduler: openvino_genai.SchedulerConfig) -> dict[str, object]:
    """What the pipeline is to be loaded with; the draft model's KV cache has as many blocks as the model's own.

    Raises:
        SpecError: the draft model is not there, or has another vocabulary.
    """
    if spec.max_ngram_size is not None:
        return {"prompt_lookup": True}
    if spec.draft_dir is None:
        return {}
    _check_vocabulary(spec.dir, spec.draft_dir)
    return {"draft_model": openvino_genai.draft_model(spec.draft_dir, "CPU", scheduler_config=scheduler)}


def set_drafting(config: openvino_genai.GenerationConfig, spec: OpenVinoEngineSpec) -> None:
    """Have a request take part; without drafting nothing is set."""
    if spec.num_draft_tokens:
        config.num_assistant_tokens = spec.num_draft_tokens
    if spec.max_ngram_size is not None:
        config.max_ngram_size = spec.max_ngram_size


@dataclass(slots=True)
class DraftCount:
    """Draft tokens of one request, by our own count: OpenVINO has none for a single request.

    A step yields one token of the model's own and, before it, the drafts that were accepted.
    """

    num_accepted: int = 0
    num_offered: int = 0

    def note_step(self, num_tokens: int, *, num_draft_tokens: int, num_missing: int) -> None:
        """Count one step of decoding.

        Args:
            num_tokens: that it made.
            num_draft_tokens: that a step drafts while there is room for them.
            num_missing: up to `max_tokens`, before this step.
        """
        self.num_accepted += max(num_tokens - 1, 0)
        self.num_offered += min(num_draft_tokens, num_missing - 1)


def _check_vocabulary(folder: Path, draft_folder: Path) -> None:
    model = load_model_folder(folder, weights="openvino_model.xml")
    draft = load_model_folder(draft_folder, weights="openvino_model.xml", field="engine.draft_dir")
    if draft.vocab_size != model.vocab_size:
        raise SpecError(
            f"engine.draft_dir: {draft_folder} has {draft.vocab_size} tokens and the model {model.vocab_size}; "
            "a draft model needs the same tokenizer",
            field="engine.draft_dir",
            value=draft.vocab_size,
        )
