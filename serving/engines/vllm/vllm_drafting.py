# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding in vLLM's words; what its sampler leaves out beside drafts is refused by the capabilities.

vLLM accepts a draft by the model's own distribution (its rejection sampler), so greedy output stays as it was and
sampled output keeps its distribution. In its CPU build it does not: `_expand_kernel_impl` of `cpu_triton_utils.py`
spreads temperature, top_k and top_p over the drafts in copies that are dropped, so that a sampled request is verified
by whatever is in memory, or ends the core. There a sampled request is refused. `logit_bias` beside drafts is refused by
vLLM's front end, which is not run here.
Source: vllm 0.32.0, `vllm/v1/sample/rejection_sampler.py`, `SamplingParams._validate_spec_decode`.
"""

from typing import Any

from ensemble_configs.spec.engine.speculation_specs import DraftTargetSpec, Eagle3Spec, PromptLookupSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.base import SamplingParams
from serving.engines.seam.model_folder import ModelFolder, load_model_folder
from serving.engines.vllm.vllm_upstream import Request
from trireme.base.errors import RequestError, SpecError

_METHODS = {"ngram": "ngram", "draft_target": "draft_model", "eagle3": "eagle3"}


def drafting_arguments(spec: VllmEngineSpec) -> dict[str, Any]:
    """Return the keywords of EngineArgs."""
    speculation = spec.speculation
    if speculation is None:
        return {}
    config: dict[str, Any] = {
        "method": _METHODS[speculation.method],
        "num_speculative_tokens": speculation.max_draft_len,
    }
    match speculation:
        case PromptLookupSpec():
            config["prompt_lookup_max"] = speculation.max_matching_ngram_size
            config["prompt_lookup_min"] = speculation.min_matching_ngram_size
        case DraftTargetSpec() | Eagle3Spec():
            config["model"] = str(speculation.dir)
    return {"speculative_config": config, "per_request_spec_decode_metrics": "summary"}


def check_draft_model(spec: VllmEngineSpec, model: ModelFolder) -> None:
    """Check the draft checkpoint of a deployment.

    Raises:
        SpecError: the checkpoint is not there, or has another vocabulary.
    """
    if not isinstance(spec.speculation, DraftTargetSpec | Eagle3Spec):
        return
    field = "engine.speculation.dir"
    draft = load_model_folder(spec.speculation.dir, weights="config.json", field=field)
    # The vocabulary of EAGLE-3's drafts may be a part of the model's: draft_vocab_size.
    if isinstance(spec.speculation, DraftTargetSpec) and draft.vocab_size != model.vocab_size:
        raise SpecError(
            f"{field}: {spec.speculation.dir} has {draft.vocab_size} tokens and the model {model.vocab_size}; a draft "
            "model needs the same tokenizer",
            field=field,
            value=draft.vocab_size,
        )


def refuse_undraftable(sampling: SamplingParams, spec: VllmEngineSpec) -> None:
    """Check that a request can be drafted for.

    Raises:
        RequestError: the request is sampled on a CPU, whose build of vLLM reads no temperature beside drafts.
    """
    if spec.is_on_cpu and spec.speculation is not None and not sampling.is_greedy:
        field = "top_k" if sampling.top_k else "top_p"
        raise RequestError(
            f"{field} ({getattr(sampling, field)}) does not go with engine.speculation on a CPU: vLLM's CPU build "
            "verifies drafts by a temperature, top_k and top_p that it has never set; send top_k 1, or serve without "
            "engine.speculation",
            field=field,
            value=getattr(sampling, field),
            provider=spec.provider,
        )


def draft_counts(request: Request) -> dict[str, int | None]:
    """Return the draft tokens of a request so far, as fields of PerfMetrics; none without speculative decoding."""
    metrics = request.spec_decode_metrics
    if metrics is None:
        return {}
    num_accepted = sum(num * count for num, count in enumerate(metrics.histogram))
    return {"total_accepted_draft_tokens": num_accepted, "total_draft_tokens": metrics.num_draft_tokens}
