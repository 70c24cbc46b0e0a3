# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding in OpenVINO's words: tokens proposed by a small model or looked up in the prompt, then verified.

Set up for the whole engine by its deployment: OpenVINO then drafts for every request, as many tokens as that one asks
for. What is accepted is what the model would have chosen, so that greedy output stays as it was. Tokens that were
looked up are accepted where they equal what the model has just sampled, which keeps its distribution. What a draft
model has sampled is not: OpenVINO 2026.4 weighs the draft's probability against that of another token
(`validate_candidate` in its sampler.cpp), so that all but the first token follow the draft. Hence a sampled request is
refused there: OpenVINO serves none without drafting.

OpenVINO 2026.4 loses requests that it preempts while it drafts: `openvino_admission` admits only what fits to its end.
With a draft model it makes no tokens for the others while a prompt is in its prefill, and wrong ones where several
steps of prefill are shared: a prompt is admitted when one step has room for all of it, and a longer one alone.
"""

from dataclasses import dataclass
from pathlib import Path

import openvino_genai

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.seam.base import SamplingParams
from serving.engines.seam.model_folder import load_model_folder
from trireme.base.errors import RequestError, SpecError


def draft_properties(spec: OpenVinoEngineSpec, scheduler: openvino_genai.SchedulerConfig) -> dict[str, object]:
    """Return the properties with which to load the pipeline.

    The draft model's KV cache has as many blocks as the model's own.
    Raises:
        SpecError: the draft model is not there, or has another vocabulary.
    """
    if spec.max_ngram_size is not None:
        return {"prompt_lookup": True}
    if spec.draft_dir is None:
        return {}
    _check_vocabulary(spec.dir, spec.draft_dir)
    return {"draft_model": openvino_genai.draft_model(spec.draft_dir, "CPU", scheduler_config=scheduler)}


def num_drafts_of(sampling: SamplingParams, spec: OpenVinoEngineSpec) -> int:
    """Return the tokens that a step drafts for a request: its own wish, or the deployment's; 0 without drafting."""
    return (sampling.num_draft_tokens or spec.num_draft_tokens) if spec.num_draft_tokens else 0


def set_drafting(config: openvino_genai.GenerationConfig, spec: OpenVinoEngineSpec, sampling: SamplingParams) -> None:
    """Have a request take part in drafting; without drafting nothing is set."""
    if num_drafts := num_drafts_of(sampling, spec):
        config.num_assistant_tokens = num_drafts
    if spec.max_ngram_size is not None:
        config.max_ngram_size = spec.max_ngram_size


def refuse_undraftable(sampling: SamplingParams, spec: OpenVinoEngineSpec) -> None:
    """Check that a request can be drafted for.

    Raises:
        RequestError: the request is sampled, and a draft model would change the distribution of its tokens.
    """
    if spec.draft_dir is not None and not sampling.is_greedy:
        field = "top_k" if sampling.top_k else "top_p"
        raise RequestError(
            "with a draft model OpenVINO GenAI samples from another distribution than the model's; send top_k 1, or "
            "serve without engine.draft_dir",
            field=field,
            value=getattr(sampling, field),
            provider=spec.provider,
        )


@dataclass(slots=True)
class DraftCount:
    """The draft tokens of one request, by our own count: OpenVINO has none for a single request.

    A step yields one token of the model's own and, before it, the drafts that were accepted.
    """

    num_accepted: int = 0
    num_offered: int = 0

    def note_step(self, num_tokens: int, *, num_draft_tokens: int, num_missing: int) -> None:
        """Count one step of decoding.

        Args:
            num_tokens: made by the step.
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
