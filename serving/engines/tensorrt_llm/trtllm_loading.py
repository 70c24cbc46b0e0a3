# SPDX-License-Identifier: Apache-2.0
"""The loading of the providers `tensorrt`, a compiled engine, and `pytorch`, a checkpoint on the PyTorch backend.

TensorRT-LLM 1.3 removed compiled engines; the PyTorch backend is in 1.2 and later.
"""

from ensemble_configs.releases.engine_fit import refuse_mismatches, whole_sequence_of
from ensemble_configs.releases.pytorch_checkpoint import checkpoint_mismatches
from ensemble_configs.releases.release_manifest import find_release, load_manifest
from ensemble_configs.spec.batch_limits import within_build
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.seam.base import Engine, EngineInfo
from serving.engines.seam.engine_folder import load_engine_folder
from serving.engines.seam.model_folder import check_max_seq_len, load_model_folder
from serving.engines.tensorrt_llm.trtllm_arguments import TrtLlmSpec, llm_arguments
from serving.engines.tensorrt_llm.trtllm_engine import TrtLlmEngine
from serving.engines.tensorrt_llm.trtllm_kv_events import BUFFER_SIZE, TrtLlmKvEvents
from serving.engines.tensorrt_llm.trtllm_sampling import SamplingWords
from serving.engines.tensorrt_llm.trtllm_upstream import installed_version, load_upstream
from serving.engines.tensorrt_llm.trtllm_version_check import check_version
from trireme.base.errors import SpecError

_FIRST_WITHOUT_ENGINES = (1, 3)


def load_trtllm_engine(spec: TrtLlmSpec, *, tells_kv_events: bool = False) -> Engine:
    """Load a compiled engine on the GPUs that it was built for, or a checkpoint.

    Args:
        tells_kv_events: whether `take_kv_events` has something to return.

    Raises:
        SpecError: the folder holds nothing that fits the spec, the installed TensorRT-LLM is too new for an engine or
            too old, or it cannot load the model in this way.
    """
    if isinstance(spec, TensorRtEngineSpec):
        return _load_compiled(spec, tells_kv_events=tells_kv_events)
    return _load_checkpoint(spec, tells_kv_events=tells_kv_events)


def _load_compiled(spec: TensorRtEngineSpec, *, tells_kv_events: bool) -> Engine:
    folder = load_engine_folder(spec)
    refuse_versions_without_engines(installed_version())
    return _load(
        within_build(spec, num_seqs=folder.max_batch_size, num_tokens=folder.max_num_tokens),
        "tensorrt_llm._tensorrt_engine",
        vocab_size=folder.vocab_size,
        end_ids=folder.end_ids,
        kv_block_tokens=folder.kv_block_tokens,
        max_prompt_tokens=folder.max_prompt_tokens,
        tells_kv_events=tells_kv_events,
    )


def _load_checkpoint(spec: PyTorchEngineSpec, *, tells_kv_events: bool) -> Engine:
    model = load_model_folder(spec.dir, weights="config.json")
    check_max_seq_len(spec, model)
    refuse_mismatches(list(checkpoint_mismatches(spec)))
    if (folder := find_release(spec.dir)) is not None:
        limits = load_manifest(folder).limits
        spec = within_build(spec, num_seqs=limits.max_batch_size, num_tokens=limits.max_num_tokens)
    longest = min(spec.max_num_batched_tokens, spec.max_seq_len - 1)
    return _load(
        spec,
        "tensorrt_llm",
        vocab_size=model.vocab_size,
        end_ids=model.end_ids,
        kv_block_tokens=spec.kv_block_tokens,
        max_prompt_tokens=None if spec.is_chunked_prefill else longest,
        tells_kv_events=tells_kv_events,
    )


def _load(
    spec: TrtLlmSpec,
    llm_module: str,
    *,
    vocab_size: int,
    end_ids: tuple[int, ...],
    kv_block_tokens: int,
    max_prompt_tokens: int | None,
    tells_kv_events: bool,
) -> Engine:
    check_version(spec, installed_version())
    upstream = load_upstream(llm_module)
    words = SamplingWords(spec, upstream, end_ids=end_ids, vocab_size=vocab_size)
    info = EngineInfo(
        provider=spec.provider,
        vocab_size=vocab_size,
        max_seq_len=spec.max_seq_len,
        end_ids=end_ids,
        kv_block_tokens=kv_block_tokens,
        num_kv_blocks=1,  # upstream tells how many there are
        max_num_seqs=spec.max_num_seqs,
        max_num_batched_tokens=spec.max_num_batched_tokens,
        max_prompt_tokens=max_prompt_tokens,
        supported=words.supported,
        why_not=words.why_not,
    )
    arguments = llm_arguments(
        spec, upstream, kv_block_tokens=kv_block_tokens, kv_event_buffer=BUFFER_SIZE if tells_kv_events else 0
    )
    return TrtLlmEngine(
        upstream,
        arguments,
        words,
        info,
        spec=spec,
        whole_sequence=whole_sequence_of(spec),
        kv_events=TrtLlmKvEvents(kv_block_tokens) if tells_kv_events else None,
    )


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
