# SPDX-License-Identifier: Apache-2.0
"""The provider `pytorch`: a checkpoint on TensorRT-LLM's PyTorch backend, 1.2 and later."""

from ensemble_configs.releases.engine_fit import refuse_mismatches, whole_sequence_of
from ensemble_configs.releases.pytorch_checkpoint import checkpoint_mismatches
from ensemble_configs.releases.release_manifest import find_release, load_manifest
from ensemble_configs.spec.batch_limits import within_build
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from serving.engines.seam.base import Engine, EngineInfo
from serving.engines.seam.model_folder import ModelFolder, check_max_seq_len
from serving.engines.tensorrt_llm.trtllm_arguments import llm_arguments
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine
from serving.engines.tensorrt_llm.trtllm_sampling import SamplingWords
from serving.engines.tensorrt_llm.trtllm_upstream import installed_version, load_upstream
from serving.engines.tensorrt_llm.trtllm_version_check import check_version


def load_pytorch_engine(spec: PyTorchEngineSpec, model: ModelFolder) -> Engine:
    """Load a checkpoint.

    Raises:
        SpecError: the spec asks for more than the model has, or TensorRT-LLM cannot load it in this way.
    """
    check_max_seq_len(spec, model)
    refuse_mismatches(list(checkpoint_mismatches(spec)))
    spec = _within_release(spec)
    check_version(spec, installed_version())
    upstream = load_upstream("tensorrt_llm")
    words = SamplingWords(spec, upstream, end_ids=model.end_ids, vocab_size=model.vocab_size)
    info = EngineInfo(
        provider=spec.provider,
        vocab_size=model.vocab_size,
        max_seq_len=spec.max_seq_len,
        end_ids=model.end_ids,
        kv_block_tokens=spec.kv_block_tokens,
        num_kv_blocks=1,  # upstream tells how many there are
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_prompt_tokens=None if spec.is_chunked_prefill else min(spec.max_num_batched_tokens, spec.max_seq_len - 1),
        supported=words.supported,
        why_not=words.why_not,
    )
    arguments = llm_arguments(spec, upstream, kv_block_tokens=spec.kv_block_tokens)
    return TrtLlmEngine(upstream, arguments, words, info, spec=spec, whole_sequence=whole_sequence_of(spec))


def _within_release(spec: PyTorchEngineSpec) -> PyTorchEngineSpec:
    folder = find_release(spec.dir)
    if folder is None:
        return spec
    limits = load_manifest(folder).limits
    return within_build(spec, num_seqs=limits.max_batch_size, num_tokens=limits.max_num_tokens)
