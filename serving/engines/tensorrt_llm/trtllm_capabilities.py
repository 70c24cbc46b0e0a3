# SPDX-License-Identifier: Apache-2.0
"""The part of the contract that TensorRT-LLM 1.2 can do through its LLM API, and for all else the class that lacks it.

Source of the classes and their arguments: the facts that the tests' stand-in is generated from; `make trtllm-facts`
compares them with an installed version.
"""

from collections.abc import Collection, Mapping

from ensemble_configs.spec.engine.speculation_specs import Eagle3Spec, MtpSpec
from serving.engines.seam.capabilities import (
    BEAM_FIELDS,
    DISAGGREGATION_FIELDS,
    DRAFT_FIELDS,
    ENCODER_DECODER_FIELDS,
    LOOKAHEAD_FIELDS,
    MROPE_FIELDS,
    PROMPT_TABLE_FIELDS,
    Capabilities,
    Condition,
)
from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec
from serving.engines.tensorrt_llm.trtllm_sampling_rows import ARGUMENTS, FOR_TRTLLM_SAMPLER

_REFUSED = (
    dict.fromkeys(
        (*DRAFT_FIELDS, "use_draft_logits"),
        "LLM.generate_async of 1.2 has no argument for drafts (ExternalDraftTokensConfig was the executor's own); "
        "have the deployment draft, engine.speculation",
    )
    | {
        "num_draft_tokens": "LLM takes the number of drafts when it loads a model: engine.speculation; leave it out",
    }
    | dict.fromkeys(
        PROMPT_TABLE_FIELDS,
        "LLM.generate_async of 1.2 takes a prompt table from a folder only (PromptAdapterRequest), and no "
        "PromptTuningConfig; leave it out",
    )
    | dict.fromkeys(
        ("lora_weights", "lora_config"),
        "LoRARequest of 1.2 takes a folder (lora_path) and no tensors; put the adapter into engine.lora.dir and send "
        "its lora_task_id or lora_name alone",
    )
    | dict.fromkeys(
        ENCODER_DECODER_FIELDS,
        "LLM.generate_async of 1.2 has no argument for an encoder or a decoder's prompt (the executor's own Request "
        "had); leave it out",
    )
    | dict.fromkeys(
        MROPE_FIELDS, "LLM.generate_async of 1.2 has no argument for MropeConfig (the executor's own Request had)"
    )
)
_LOGITS = ("return_context_logits", "return_generation_logits")
_GUIDES = Condition(
    "with `engine.guided_decoding_backend`",
    lambda spec: spec.guided_decoding_backend is not None,
    "the deployment has no engine.guided_decoding_backend; leave it out",
)
_LORA = Condition(
    "with `engine.lora`", lambda spec: spec.lora is not None, "the deployment has no engine.lora; leave it out"
)
_TRANSCEIVER = Condition(
    "with `engine.cache_transceiver`",
    lambda spec: spec.cache_transceiver is not None,
    "the deployment has no engine.cache_transceiver; send the request to a server that does both phases",
)
_BEAMS = Condition(
    "with `engine.max_beam_width`",
    lambda spec: spec.max_beam_width > 1,
    "the deployment's engine.max_beam_width is 1; ask for num_return_sequences instead",
)
_CONDITIONS = (
    dict.fromkeys(("guide_type", "guide"), _GUIDES)
    | dict.fromkeys(("lora_task_id", "lora_name"), _LORA)
    | dict.fromkeys(DISAGGREGATION_FIELDS, _TRANSCEIVER)
    | dict.fromkeys(BEAM_FIELDS, _BEAMS)
)
_GATHERED = Condition(
    "with `engine.is_gathering_generation_logits` and without `engine.speculation`",
    lambda spec: spec.is_gathering_generation_logits and spec.speculation is None,
    "it needs engine.is_gathering_generation_logits, with which any engine can be loaded, and none of "
    "engine.speculation, beside whose drafts TensorRT-LLM fails every running request; set the deployment so, or "
    "leave it out",
)
_BEAMS_ALONE = Condition(
    "with `engine.max_beam_width` and without `engine.speculation`",
    lambda spec: spec.max_beam_width > 1 and spec.speculation is None,
    "it needs an engine.max_beam_width above 1 and none of engine.speculation, beside whose drafts TensorRT-LLM fails "
    "every running request; ask for num_return_sequences instead",
)
_GUIDES_ALONE = Condition(
    "with `engine.guided_decoding_backend` and without `engine.speculation`",
    lambda spec: spec.guided_decoding_backend is not None and spec.speculation is None,
    "it needs engine.guided_decoding_backend, and none of engine.speculation: a compiled engine's grammar follows one "
    "token a step; leave it out",
)
_LOOKAHEAD = Condition(
    "with lookahead in `engine.speculation`",
    lambda spec: spec.speculation is not None and spec.speculation.method == "lookahead",
    "the deployment's engine.speculation is not lookahead; leave it out",
)
_SAMPLER = Condition(
    "with `engine.sampler: trtllm`",
    lambda spec: spec.sampler == "trtllm",
    "TorchSampler of 1.2 does not read it; set engine.sampler: trtllm or leave it out",
)
_SAMPLER_AND_BEAMS = Condition(
    "with `engine.sampler: trtllm`, in a width of `engine.max_beam_width` alone",
    lambda spec: spec.sampler == "trtllm" and spec.max_beam_width > 1,
    "it needs engine.sampler: trtllm and engine.max_beam_width; leave it out",
)

_ALONE_IN_THE_MODEL = Condition(
    "without MTP or one-model EAGLE-3 in `engine.speculation`",
    lambda spec: not samples_in_the_model(spec.speculation),
    "the drafts of engine.speculation are sampled inside the model, which tells tokens alone, and TensorRT-LLM 1.2 "
    "ends the whole engine when it is asked for more; leave it out",
)
_PREFILL_ALONE = Condition(
    "with `engine.cache_transceiver` and without `engine.is_overlap_scheduler`",
    lambda spec: spec.cache_transceiver is not None and not spec.is_overlap_scheduler,
    "it needs engine.cache_transceiver and engine.is_overlap_scheduler: false; send the request to a server that does "
    "both phases",
)

_SUPPORTED = frozenset(ARGUMENTS)
CAPABILITIES: Mapping[str, Capabilities] = {
    "tensorrt": Capabilities(
        supported=_SUPPORTED,
        why_not=_REFUSED,
        conditions=_CONDITIONS
        | {
            "return_log_probs": _GATHERED._replace(words=f"{_GATHERED.words}, without beams"),
            "return_generation_logits": _GATHERED,
            "return_context_logits": Condition(
                "with `engine.is_gathering_context_logits`",
                lambda spec: spec.is_gathering_context_logits,
                "the deployment's engine.is_gathering_context_logits is off; leave it out",
            ),
        }
        | dict.fromkeys(BEAM_FIELDS, _BEAMS_ALONE)
        | dict.fromkeys(("guide_type", "guide"), _GUIDES_ALONE)
        | dict.fromkeys(LOOKAHEAD_FIELDS, _LOOKAHEAD),
    ),
    "pytorch": Capabilities(
        supported=_SUPPORTED - {*LOOKAHEAD_FIELDS},
        why_not=_REFUSED
        | dict.fromkeys(
            LOOKAHEAD_FIELDS,
            "LookaheadDecodingConfig of 1.2 is for compiled engines only; have the deployment draft, "
            "engine.speculation",
        ),
        conditions=_CONDITIONS
        | dict.fromkeys(("return_log_probs", *_LOGITS), _ALONE_IN_THE_MODEL)
        | {
            "is_context_only": _PREFILL_ALONE,
            "beam_width": _BEAMS._replace(words=f"{_BEAMS.words}, in that width alone (1 is refused, too)"),
        }
        | dict.fromkeys(FOR_TRTLLM_SAMPLER - {*BEAM_FIELDS}, _SAMPLER)
        | dict.fromkeys(FOR_TRTLLM_SAMPLER & {*BEAM_FIELDS}, _SAMPLER_AND_BEAMS),
    ),
}


def samples_in_the_model(speculation: object) -> bool:
    """Return whether drafts and target are one model, whose sampler makes tokens and nothing beside them.

    Source: tensorrt_llm/_torch/speculative/utils.py of 1.2, get_spec_decoder: MTPSampler and Eagle3OneModelSampler.
    """
    return isinstance(speculation, MtpSpec) or (isinstance(speculation, Eagle3Spec) and speculation.is_one_model)


# Where upstream has no choice of samplers (since PR #18232), TorchSampler reads what needed the other, but for these.
# Source: _torch/pyexecutor/sampler of September 2026: penalties, top_p_decay, token_ban, beam_search, seed_manager.
_NOT_BY_TORCH_SAMPLER = {
    "seed": "where requests are batched, TorchSampler of {version} samples all by the seed of the first",
    "beam_search_diversity_rate": "TorchSampler of {version} was not seen to read it",
}


def why_not_here(
    spec: TrtLlmSpec, known_arguments: Collection[str], version: str, *, has_samplers: bool = True
) -> dict[str, str]:
    """Return every field that this deployment on this installation does not support, and why.

    Args:
        spec: the deployment's.
        known_arguments: of the installed version's SamplingParams and generate_async.
        version: the installed one.
        has_samplers: whether `engine.sampler` is a choice there; later versions have TorchSampler alone.
    """
    if spec.provider == "pytorch" and not has_samplers:
        lifted = spec.model_copy(update={"sampler": "trtllm"})  # what the conditions ask for is met by the one sampler
        reasons = {name: f"{why.format(version=version)}; leave it out" for name, why in _NOT_BY_TORCH_SAMPLER.items()}
        return why_not_here(lifted, known_arguments, version) | reasons
    capabilities = CAPABILITIES[spec.provider]
    lacking = {
        field: f"TensorRT-LLM {version} has no argument {argument}; leave it out"
        for field, argument in ARGUMENTS.items()
        if argument not in known_arguments
    }
    return {**capabilities.why_not, **capabilities.unmet(spec), **lacking}
