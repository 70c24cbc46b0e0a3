# SPDX-License-Identifier: Apache-2.0
"""The part of the contract that vLLM 0.32 can do, and for all else what it lacks."""

from serving.engines.seam.capabilities import (
    BEAM_FIELDS,
    DISAGGREGATION_FIELDS,
    DRAFT_FIELDS,
    ENCODER_DECODER_FIELDS,
    KV_BLOCK_OUTPUTS,
    LOOKAHEAD_FIELDS,
    MROPE_FIELDS,
    PROMPT_TABLE_FIELDS,
    RETENTION_FIELDS,
    Capabilities,
    Condition,
)
from serving.engines.vllm.vllm_arguments import TOKENIZER_FILE, has_guides
from serving.engines.vllm.vllm_sampling import ADAPTERS, MADE, ROWS

_NO_DECAY = "SamplingParams.top_p of vLLM stays as it is for the whole request; leave it out"
_GUIDES = Condition(
    f"with `{TOKENIZER_FILE}` beside the model",
    has_guides,
    f"guided decoding needs {TOKENIZER_FILE} in the model's folder; put it there",
)
_LORA = Condition(
    "with `engine.lora`", lambda spec: spec.lora is not None, "the deployment has no engine.lora; leave it out"
)
_NO_DRAFTS = Condition(
    "without `engine.speculation`",
    lambda spec: spec.speculation is None,
    "vLLM verifies the drafts of engine.speculation by logits without it; leave it out",
)
_TRANSFER = Condition(
    "with `engine.kv_transfer`",
    lambda spec: spec.kv_transfer is not None,
    "the deployment has no engine.kv_transfer; leave it out, or name that",
)
# Of a request, not of the deployment: `vllm_drafting.refuse_undraftable`.
_GREEDY_ON_CPUS = Condition("with `engine.speculation` on a CPU in greedy requests alone", lambda _: True, "")
CAPABILITIES = Capabilities(
    supported=frozenset({row.field for row in ROWS} | MADE | ADAPTERS).union(DISAGGREGATION_FIELDS),
    why_not=dict.fromkeys(("top_p_min", "top_p_decay", "top_p_reset_id"), _NO_DECAY)
    | dict.fromkeys(
        ("return_context_logits", "return_generation_logits"),
        "vLLM's core hands out log probabilities, and no logits; return_log_probs gives those of the chosen tokens",
    )
    | dict.fromkeys(
        BEAM_FIELDS, "vLLM searches with beams outside of its engine core; ask for num_return_sequences instead"
    )
    | dict.fromkeys(
        (*DRAFT_FIELDS, "use_draft_logits", "num_draft_tokens"),
        "vLLM drafts by itself, as it was loaded: engine.speculation; leave it out",
    )
    | dict.fromkeys(LOOKAHEAD_FIELDS, "vLLM has no lookahead decoding; leave it out")
    | dict.fromkeys(PROMPT_TABLE_FIELDS, "vLLM takes no table of virtual tokens; leave it out")
    | dict.fromkeys(ENCODER_DECODER_FIELDS, "this provider serves decoders only; leave it out")
    | dict.fromkeys(MROPE_FIELDS, "vLLM computes rotary positions itself; leave it out")
    | dict.fromkeys(RETENTION_FIELDS, "vLLM keeps blocks of all requests alike (prefix caching); leave it out")
    | dict.fromkeys(
        ("lora_weights", "lora_config"),
        "vLLM reads an adapter from a folder; put it into engine.lora.dir and send its lora_task_id or lora_name alone",
    )
    | dict.fromkeys(KV_BLOCK_OUTPUTS, "vLLM tells cached tokens, and no blocks of a request"),
    conditions=dict.fromkeys(("guide_type", "guide"), _GUIDES)
    | dict.fromkeys(("lora_task_id", "lora_name"), _LORA)
    | dict.fromkeys(DISAGGREGATION_FIELDS, _TRANSFER)
    | {"embedding_bias": _NO_DRAFTS, "top_k": _GREEDY_ON_CPUS, "top_p": _GREEDY_ON_CPUS},
)
