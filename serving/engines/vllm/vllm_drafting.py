# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding in vLLM's words; what its sampler leaves out beside drafts is refused by the capabilities.

vLLM accepts a draft by the model's own distribution (its rejection sampler), so greedy output stays as it was and
sampled output keeps its distribution. In its CPU build it does not: `_expand_kernel_impl` of `cpu_triton_utils.py`
spreads temperature, top_k and top_p over the drafts in copies that are dropped, so that a sampled request is verified
by whatever is in memory, or ends the core. There a sampled request is refused. `logit_bias` beside drafts is refused by
vLLM's front end, which is not run here.
Source: vllm 0.32.0, `vllm/v1/sample/rejection_sampler.py`, `SamplingParams._validate_spec_decode`.
"""

from pathlib import Path
from typing import Any

import msgspec

from ensemble_configs.releases.safetensors_file import read_header
from ensemble_configs.spec.engine.speculation_specs import DraftTargetSpec, Eagle3Spec, PromptLookupSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.base import SamplingParams
from serving.engines.seam.model_folder import ModelFolder, load_model_folder
from serving.engines.vllm.vllm_upstream import Request
from trireme.base.errors import RequestError, SpecError
from trireme.base.known_types import known

_FIELD = "engine.speculation.dir"
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


class _Config(msgspec.Struct, frozen=True):
    """The config of a head or of a model; a head in the form of `speculators` has that of its layer inside."""

    architectures: list[str] | None = None
    hidden_size: int | None = None
    target_hidden_size: int | None = None  # where the head is of another width
    vocab_size: int | None = None
    speculators_model_type: str | None = None
    transformer_layer_config: "_Config | None" = None

    @property
    def layer(self) -> "_Config":
        return self.transformer_layer_config or self


def check_draft_model(spec: VllmEngineSpec, model: ModelFolder) -> None:
    """Check the draft model, or the EAGLE-3 head, of a deployment.

    Raises:
        SpecError: the checkpoint is not there, is of the other kind, or does not go with the model.
    """
    match spec.speculation:
        case DraftTargetSpec(dir=folder):
            draft = load_model_folder(folder, weights="config.json", field=_FIELD)
            if any("eagle3" in name.lower() for name in _config(folder).architectures or []):
                raise _misfit(folder, "is an EAGLE-3 head, not a draft model; set engine.speculation.method: eagle3")
            if draft.vocab_size != model.vocab_size:
                raise _misfit(
                    folder,
                    f"has {draft.vocab_size} tokens and the model {model.vocab_size}; a draft model needs the same "
                    "tokenizer",
                )
        case Eagle3Spec(dir=folder):
            _check_head(folder, _config(folder), _config(spec.dir).hidden_size, model.vocab_size)


def _check_head(folder: Path, head: _Config, model_width: int | None, vocab_size: int) -> None:
    kind = head.speculators_model_type
    if kind not in (None, "eagle3"):
        raise _misfit(folder, f"is a head of the kind {kind}, not eagle3; name an EAGLE-3 head")
    weights = folder / "model.safetensors"
    if weights.is_file() and not any(name.startswith("fc.") for name in read_header(weights)):
        raise _misfit(
            folder,
            "has no weights fc, so it is no EAGLE-3 head; name a head that was trained for this model, or set "
            "engine.speculation.method: draft_target for a smaller model",
        )
    width = head.target_hidden_size or head.layer.hidden_size
    if None not in (width, model_width) and width != model_width:
        raise _misfit(
            folder, f"was trained for a model of hidden_size {width}, and this one has {model_width}; name its own head"
        )
    # The tokens that the head drafts may be a part of these: draft_vocab_size.
    if head.layer.vocab_size not in (None, vocab_size):
        raise _misfit(
            folder,
            f"was trained for a model of {head.layer.vocab_size} tokens, and this one has {vocab_size}; name its own "
            "head",
        )


def _config(folder: Path) -> _Config:
    file = folder / "config.json"
    if not file.is_file():
        raise _misfit(folder, "has no config.json; name the folder of a checkpoint")
    try:
        return msgspec.json.decode(file.read_bytes(), type=known(_Config))
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{file}: {exc}", file=file) from exc


def _misfit(folder: Path, what: str) -> SpecError:
    return SpecError(f"{_FIELD}: {folder} {what}", field=_FIELD, value=folder)


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
