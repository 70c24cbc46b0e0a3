# SPDX-License-Identifier: Apache-2.0
"""The memory of an engine on a device, from its release's manifest or else from the files that it is made of."""

from dataclasses import dataclass
from pathlib import Path

from build_engines.checkpoint.checkpoint_config import read_whole_model_shape
from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.model_shape import ModelShape
from build_engines.migration.compiled_engine import int_of, load_compiled_engine
from build_engines.migration.compiled_engine import kv_bytes_per_token as compiled_kv_bytes_per_token
from build_engines.openvino.openvino_formats import cpu_kv_bytes_per_token
from build_engines.planner.roofline.footprint import kv_bytes_per_token, state_bytes_per_sequence, workspace_bytes
from build_engines.sharding.parallel_sizes import ParallelSizes
from ensemble_configs.releases.kept_logits import kept_logits_bytes
from ensemble_configs.releases.memory_need import rank_memory
from ensemble_configs.releases.release_manifest import find_release, load_manifest
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from trireme.base.errors import SpecError

_OPENVINO_BLOCK_TOKENS = 32
_VLLM_BLOCK_TOKENS = 16  # on a GPU, where the deployment names none
_MAX_RANK_SHARE = 1.05  # of a checkpoint that is divided: the fullest rank has a little more than the mean


@dataclass(frozen=True)
class EngineMemory:
    """Bytes on each of the engine's devices; where they differ, on the fullest."""

    weight_bytes: int
    workspace_bytes: int
    kv_bytes_per_token: float
    kv_block_tokens: int
    source: str  # where the figures are from, for people

    @property
    def fixed_bytes(self) -> int:
        """Return the bytes of everything but the KV cache."""
        return self.weight_bytes + self.workspace_bytes

    def kv_bytes(self, num_blocks: int) -> int:
        """Return the bytes of `num_blocks` KV cache blocks."""
        return round(num_blocks * self.kv_block_tokens * self.kv_bytes_per_token)


def memory_of(engine: EngineSpec) -> EngineMemory:
    """Return the memory of an engine.

    Raises:
        SpecError: the engine's files are not here, or do not tell.
    """
    if isinstance(engine, SimulatedEngineSpec):
        return EngineMemory(
            engine.weight_bytes, 0, engine.kv_bytes_per_token, engine.kv_block_tokens, "as the deployment says"
        )
    if not engine.dir.is_dir():
        raise SpecError(
            f"engine.dir: there is no folder {engine.dir}; build or pull the release, or ask `trireme plan MODEL` "
            "before there is one",
            field="engine.dir",
        )
    release = find_release(engine.dir)
    if release is not None:
        manifest = load_manifest(release)
        return EngineMemory(*rank_memory(manifest, engine), f"manifest of {manifest.name}")
    match engine:
        case OpenVinoEngineSpec():
            return _of_openvino(engine)
        case TensorRtEngineSpec():
            return _of_compiled(engine)
        case PyTorchEngineSpec():
            return _of_checkpoint(engine)
        case VllmEngineSpec():
            return _of_vllm(engine)
    raise AssertionError(f"no such engine: {engine!r}")


def _of_openvino(engine: OpenVinoEngineSpec) -> EngineMemory:
    shape = read_whole_model_shape(load_config(engine.dir), source=str(engine.dir))
    return EngineMemory(
        _size_of(engine.dir, "openvino_model.bin"),
        0,
        cpu_kv_bytes_per_token(shape, engine.kv_format),
        _OPENVINO_BLOCK_TOKENS,
        "its files; without its buffers",
    )


def _of_compiled(engine: TensorRtEngineSpec) -> EngineMemory:
    compiled = load_compiled_engine(engine.dir)
    if compiled is None:
        raise SpecError(f"engine.dir: {engine.dir} has no config.json of an engine; build it again", field="engine.dir")
    logits = kept_logits_bytes(
        engine,
        vocab_size=int_of(compiled.pretrained, "vocab_size") or 0,
        max_batch_size=int_of(compiled.build, "max_batch_size"),
    )
    return EngineMemory(
        _size_of(engine.dir, "rank*.engine"),
        workspace_bytes(None, ParallelSizes(engine.tp_size, engine.pp_size), engine.max_num_batched_tokens) + logits,
        compiled_kv_bytes_per_token(compiled),
        compiled.kv_block_tokens,
        "its files; its activations are not known",
    )


def _of_checkpoint(engine: PyTorchEngineSpec) -> EngineMemory:
    shape = read_whole_model_shape(load_config(engine.dir), source=str(engine.dir))
    layout = ParallelSizes(
        tp_size=engine.tp_size,
        pp_size=engine.pp_size,
        ep_size=engine.ep_size or 1,
        cp_size=engine.cp_size,
        is_attention_dp=engine.is_attention_dp,
    )
    states = engine.max_num_seqs * state_bytes_per_sequence(shape, layout)  # taken when the engine starts
    return EngineMemory(
        # Context parallel ranks each have all weights of their part.
        _share_of_files(engine.dir, engine.world_size // engine.cp_size),
        workspace_bytes(shape, layout, engine.max_num_batched_tokens) + states,
        kv_bytes_per_token(shape, _kv_format(shape, engine.kv_cache_dtype), layout),
        engine.kv_block_tokens,
        "its checkpoint's files",
    )


def _of_vllm(engine: VllmEngineSpec) -> EngineMemory:
    shape = read_whole_model_shape(load_config(engine.dir), source=str(engine.dir))
    layout = ParallelSizes(engine.tp_size, engine.pp_size)
    kv_format = _kv_format(shape, "fp8" if engine.kv_cache_dtype.startswith("fp8") else engine.kv_cache_dtype)
    return EngineMemory(
        _share_of_files(engine.dir, engine.world_size),
        0,
        kv_bytes_per_token(shape, kv_format, layout),
        engine.kv_block_tokens or _VLLM_BLOCK_TOKENS,
        "its checkpoint's files; vLLM's activations are not known",
    )


def _kv_format(shape: ModelShape, kv_cache_dtype: str) -> str:
    """Return the number format of the KV cache; `auto` is the model's own."""
    sixteen = "fp16" if shape.dtype == "float16" else "bf16"
    return sixteen if kv_cache_dtype == "auto" else kv_cache_dtype


def _share_of_files(folder: Path, num_parts: int) -> int:
    """Return the bytes of a checkpoint that the fullest of some ranks holds."""
    total = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    return round(total * (_MAX_RANK_SHARE / num_parts if num_parts > 1 else 1.0))


def _size_of(folder: Path, pattern: str) -> int:
    """Return the size of the largest file of that name, in bytes.

    Raises:
        SpecError: there is none.
    """
    sizes = [path.stat().st_size for path in folder.glob(pattern)]
    if not sizes:
        raise SpecError(f"engine.dir: there is no {pattern} in {folder}; build the engine again", field="engine.dir")
    return max(sizes)
