# SPDX-License-Identifier: Apache-2.0
"""The provider `tensorrt`: a compiled engine on TensorRT-LLM before 1.3, which removed engines."""

from ensemble_configs.releases.engine_fit import whole_sequence_of
from ensemble_configs.spec.batch_limits import within_build
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from serving.engines.seam.base import Engine, EngineInfo
from serving.engines.seam.engine_folder import load_engine_folder
from serving.engines.tensorrt_llm.trtllm_arguments import llm_arguments
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine
from serving.engines.tensorrt_llm.trtllm_sampling import SamplingWords
from serving.engines.tensorrt_llm.trtllm_upstream import installed_version, load_upstream
from serving.engines.tensorrt_llm.trtllm_version_check import check_version
from trireme.base.errors import SpecError

_FIRST_WITHOUT_ENGINES = (1, 3)


def load_tensorrt_engine(spec: TensorRtEngineSpec) -> Engine:
    """Load a compiled engine on the GPUs that it was built for.

    Raises:
        SpecError: the folder holds no engine or one that does not fit the spec, the installed TensorRT-LLM is too new,
            or it cannot load the engine.
    """
    folder = load_engine_folder(spec)
    spec = within_build(spec, num_seqs=folder.max_batch_size, num_tokens=folder.max_num_tokens)
    refuse_versions_without_engines(installed_version())
    check_version(spec, installed_version())
    upstream = load_upstream("tensorrt_llm._tensorrt_engine")
    words = SamplingWords(spec, upstream, end_ids=folder.end_ids, vocab_size=folder.vocab_size)
    info = EngineInfo(
        provider=spec.provider,
        vocab_size=folder.vocab_size,
        max_seq_len=spec.max_seq_len,
        end_ids=folder.end_ids,
        kv_block_tokens=folder.kv_block_tokens,
        num_kv_blocks=1,  # upstream tells how many there are
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_prompt_tokens=folder.max_prompt_tokens,
        supported=words.supported,
        why_not=words.why_not,
    )
    arguments = llm_arguments(spec, upstream, kv_block_tokens=folder.kv_block_tokens)
    return TrtLlmEngine(upstream, arguments, words, info, spec=spec, whole_sequence=whole_sequence_of(spec))


def refuse_versions_without_engines(version: str) -> None:
    """Check the version of TensorRT-LLM.

    Raises:
        SpecError: it is 1.3 or later.
    """
    major_minor = tuple(int(part) for part in version.split(".")[:2])
    if major_minor >= _FIRST_WITHOUT_ENGINES:
        raise SpecError(
            f"engine.provider 'tensorrt' needs TensorRT-LLM before 1.3, which removed compiled engines; {version} is "
            "installed. Serve the checkpoint with provider 'pytorch', or install tensorrt-llm==1.2.1, as in "
            "NVIDIA's container tritonserver:26.07-trtllm-python-py3",
            field="engine.provider",
            value="tensorrt",
            version=version,
        )
