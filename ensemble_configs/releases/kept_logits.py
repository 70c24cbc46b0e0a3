# SPDX-License-Identifier: Apache-2.0
"""GPU memory of the logits that a compiled engine keeps for log probabilities."""

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec

_NUM_STEPS = 8
_LOGIT_BYTES = 4  # float32, what `trtllm-build` makes the logits unless it is told otherwise


def kept_logits_bytes(engine: EngineSpec | None, *, vocab_size: int, max_batch_size: int | None) -> int:
    """Return the bytes that `engine.is_gathering_generation_logits` takes on a GPU of the last stage; 0 without it.

    ``[8 steps, max_num_seqs x max_beam_width, vocab_size]`` for each micro-batch, of which pipeline stages have one
    each; allocated at load, and not for an engine that drafts. Source: `RuntimeBuffers::create` and the constructor of
    `TrtGptModelInflightBatching` in TensorRT-LLM 1.2.

    Args:
        engine: None: no deployment is known.
        vocab_size: of the model.
        max_batch_size: sequences that the engine was built for, to which `max_num_seqs` is lowered; None: not known.
    """
    if not isinstance(engine, TensorRtEngineSpec) or not engine.is_gathering_generation_logits:
        return 0
    if engine.speculation is not None:
        return 0
    num_seqs = min(engine.max_num_seqs, max_batch_size or engine.max_num_seqs)
    num_rows = engine.pp_size * num_seqs * engine.max_beam_width
    return _NUM_STEPS * num_rows * vocab_size * _LOGIT_BYTES
