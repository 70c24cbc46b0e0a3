# SPDX-License-Identifier: Apache-2.0
"""The part of the contract that OpenVINO GenAI 2026.4 can do, and for all else the part of its API that it ends at.

Its words for a request are `GenerationConfig`; a request is a tensor of token ids and one of these, for
`ContinuousBatchingPipeline.add_request`. `tests/unit/examples/test_openvino_api.py` looks for each missing thing.
"""

from serving.engines.openvino.openvino_guides import GUIDE_FIELDS, TOKENIZER_FILE, WITHOUT_TOKENIZER
from serving.engines.openvino.openvino_pipeline import ROWS
from serving.engines.seam.capabilities import (
    BEAM_FIELDS,
    DISAGGREGATION_FIELDS,
    DRAFT_FIELDS,
    ENCODER_DECODER_FIELDS,
    KV_BLOCK_OUTPUTS,
    LOOKAHEAD_FIELDS,
    LORA_FIELDS,
    MROPE_FIELDS,
    PROMPT_TABLE_FIELDS,
    RETENTION_FIELDS,
    Capabilities,
    Condition,
)

_NO_MASK = "GenerationConfig takes no mask or bias on logits; leave it out or serve with another provider"
_NO_LOGITS = "no output of its pipeline has logits; return_log_probs gives those of the chosen tokens"
_NO_DECAY = "GenerationConfig.top_p stays as it is for the whole request; leave it out"
_DRAFTS = "drafts are the deployment's business: engine.draft_dir or engine.max_ngram_size; leave it out"
_NO_DRAFT_LOGITS = "its pipeline drafts by itself and verifies by ids, and no output of it has logits; leave it out"
_IDS_ONLY = "add_request with token ids takes no embeddings; leave it out or serve with another provider"
_NO_ENCODER = "its continuous batching runs decoders only; leave it out"
_NO_POSITIONS = "add_request with token ids takes no rotary positions; leave it out"
_NO_HANDOVER = "its KV cache cannot leave the process; send the request to a server that does both phases"
_NO_RETENTION = "SchedulerConfig keeps blocks of all requests alike (prefix caching); leave it out"
_ONE_SET = (
    "its pipeline has one set of adapters for all requests, and add_request ignores GenerationConfig.adapters; "
    "name the adapter in the deployment, engine.lora_file"
)
_UNTOLD_BLOCKS = "PipelineMetrics counts the blocks of all requests together"
_UNTOLD_DRAFTS = Condition(
    "without `engine.max_ngram_size`",
    lambda spec: spec.max_ngram_size is None,
    "OpenVINO does not tell how often a prompt had something to look up",
)
# Of a request, not of the deployment: `openvino_drafting.refuse_undraftable`.
_GREEDY_WITH_DRAFTS = Condition("with `engine.draft_dir` in greedy requests alone", lambda _: True, "")

CAPABILITIES = Capabilities(
    supported=frozenset({row.field for row in ROWS} | {"end_id", "num_draft_tokens"} | GUIDE_FIELDS | {*BEAM_FIELDS}),
    why_not=dict.fromkeys(("bad_words", "embedding_bias"), _NO_MASK)
    | dict.fromkeys(("return_context_logits", "return_generation_logits"), _NO_LOGITS)
    | dict.fromkeys(("top_p_min", "top_p_decay", "top_p_reset_id"), _NO_DECAY)
    | dict.fromkeys(
        (*DRAFT_FIELDS, *LOOKAHEAD_FIELDS),
        _DRAFTS,
    )
    | {"use_draft_logits": _NO_DRAFT_LOGITS}
    | dict.fromkeys(PROMPT_TABLE_FIELDS, _IDS_ONLY)
    | dict.fromkeys(
        ENCODER_DECODER_FIELDS,
        _NO_ENCODER,
    )
    | dict.fromkeys(MROPE_FIELDS, _NO_POSITIONS)
    | dict.fromkeys(DISAGGREGATION_FIELDS, _NO_HANDOVER)
    | dict.fromkeys(
        RETENTION_FIELDS,
        _NO_RETENTION,
    )
    | dict.fromkeys(LORA_FIELDS, _ONE_SET)
    | dict.fromkeys(KV_BLOCK_OUTPUTS, _UNTOLD_BLOCKS),
    conditions=dict.fromkeys(
        GUIDE_FIELDS,
        Condition(
            f"with `{TOKENIZER_FILE}` beside the model",
            lambda spec: (spec.dir / TOKENIZER_FILE).is_file(),
            WITHOUT_TOKENIZER,
        ),
    )
    | {
        "top_k": _GREEDY_WITH_DRAFTS,
        "top_p": _GREEDY_WITH_DRAFTS,
        "num_draft_tokens": Condition(
            "with `engine.draft_dir` or `engine.max_ngram_size`",
            lambda spec: spec.num_draft_tokens > 0,
            "nothing drafts here; set engine.draft_dir or engine.max_ngram_size, or leave it out",
        ),
        "min_tokens": Condition(
            "without `engine.max_ngram_size`",
            lambda spec: spec.max_ngram_size is None,
            "OpenVINO takes end tokens that were looked up, whatever their number; leave it out",
        ),
        "total_draft_tokens": _UNTOLD_DRAFTS,
        "acceptance_rate": _UNTOLD_DRAFTS,
    }
    | dict.fromkeys(
        BEAM_FIELDS,
        Condition(
            "without speculative decoding",
            lambda spec: not spec.num_draft_tokens,
            "OpenVINO drafts for all requests or for none, and not for beams; ask for num_return_sequences instead",
        ),
    ),
)
