# SPDX-License-Identifier: Apache-2.0
"""Memory that a release takes on one rank when it is served, and the check that a machine has it."""

from typing import NamedTuple

from ensemble_configs.releases.kept_logits import kept_logits_bytes
from ensemble_configs.releases.kv_capacity import blocks_of_sequence
from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.finding import Finding
from ensemble_configs.spec.release_spec import ReleaseSpec

_GIB = 1 << 30


class RankMemory(NamedTuple):
    """Memory of one rank; of a release with a draft model, both models' where the engine drafts."""

    weight_bytes: int
    workspace_bytes: int  # kept logits, too
    kv_bytes_per_token: int
    kv_block_tokens: int


def rank_memory(manifest: ReleaseManifest, engine: EngineSpec | None) -> RankMemory:
    """Return the memory of one rank of a release, run by an engine."""
    weights, kv_per_token = manifest.weight_bytes_per_rank, manifest.kv_bytes_per_token
    if manifest.draft is not None and getattr(engine, "draft_dir", None) is not None:
        weights += manifest.draft.weight_bytes_per_rank
        kv_per_token += manifest.draft.kv_bytes_per_token
    block_tokens = engine.kv_block_tokens if isinstance(engine, PyTorchEngineSpec) else manifest.kv_block_tokens
    if isinstance(engine, VllmEngineSpec):
        # The ranks divide the checkpoint when they load it.
        kv_share = engine.world_size * (2 if engine.kv_cache_dtype.startswith("fp8") else 1)
        weights, kv_per_token = -(-weights // engine.world_size), max(1, kv_per_token // kv_share)
        block_tokens = engine.kv_block_tokens or block_tokens
    return RankMemory(weights, manifest.workspace_bytes + _logits_bytes(manifest, engine), kv_per_token, block_tokens)


def memory_need_bytes(manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> int:
    """Return the bytes of one rank: weights, KV cache, workspace and kept logits.

    The KV cache is the deployment's `num_kv_blocks` or `kv_cache_bytes`; where it leaves that to the free memory, or
    without a deployment, one sequence of the longest length, which is the least that can be served.
    """
    engine = deployment.engine if deployment is not None else None
    memory = rank_memory(manifest, engine)
    if isinstance(engine, VllmEngineSpec) and engine.kv_cache_bytes is not None:
        return memory.weight_bytes + memory.workspace_bytes + engine.kv_cache_bytes
    tokens = manifest.limits.max_seq_len if engine is None else _kv_tokens(engine, memory.kv_block_tokens)
    return memory.weight_bytes + memory.workspace_bytes + int(memory.kv_bytes_per_token * tokens)


def _logits_bytes(manifest: ReleaseManifest, engine: EngineSpec | None) -> int:
    return kept_logits_bytes(engine, vocab_size=manifest.vocab_size, max_batch_size=manifest.limits.max_batch_size)


def _kv_tokens(engine: EngineSpec, block_tokens: int) -> float:
    if engine.num_kv_blocks is not None:
        return engine.num_kv_blocks * block_tokens
    # Whole blocks, of each beam its own; TensorRT-LLM gives to the cache only this part of what the weights leave.
    fraction: float = getattr(engine, "free_gpu_memory_fraction", 1.0)
    shared = 0 if isinstance(engine, PyTorchEngineSpec) else engine.max_seq_len - 1
    num_beams = getattr(engine, "max_beam_width", 1)
    blocks = blocks_of_sequence(shared, engine.max_seq_len - shared, num_beams=num_beams, block_tokens=block_tokens)
    return blocks * block_tokens / fraction


def is_on_host(manifest: ReleaseManifest, deployment: ReleaseSpec | None) -> bool:
    """Return True if the engine of a release computes on the host: OpenVINO's, and vLLM's where the deployment says."""
    engine = deployment.engine if deployment is not None else None
    return manifest.provider == "openvino" or (isinstance(engine, VllmEngineSpec) and engine.is_on_cpu)


def check_memory(
    manifest: ReleaseManifest, deployment: ReleaseSpec | None, machine: Machine, *, num_ranks_here: int
) -> list[Finding]:
    """Return a finding for each rank without the memory that it needs: of the host for an engine there, else of a GPU.

    A GPU that does not tell how much is free is not judged.
    """
    need_bytes = memory_need_bytes(manifest, deployment)
    if is_on_host(manifest, deployment):
        free_bytes = {"host": machine.free_host_bytes}
    else:
        gpus = enumerate(machine.gpus[:num_ranks_here])
        free_bytes = {f"GPU {n} {gpu.name}": gpu.free_bytes for n, gpu in gpus if gpu.free_bytes is not None}
    short = [f"{_gib(free)} free ({place})" for place, free in free_bytes.items() if free < need_bytes]
    if not short:
        return []
    logits_bytes = _logits_bytes(manifest, deployment.engine if deployment is not None else None)
    logits = f"logits {_gib(logits_bytes)} (engine.is_gathering_generation_logits), " if logits_bytes else ""
    parts = (
        f"weights {_gib(manifest.weight_bytes_per_rank)}, workspace {_gib(manifest.workspace_bytes)}, {logits}"
        f"the rest KV cache of {manifest.kv_bytes_per_token} bytes a token"
    )
    return [
        Finding(
            check="memory",
            found=", ".join(short),
            wanted=f"{_gib(need_bytes)} a rank: {parts}",
            next_step="stop what uses the memory, lower engine.num_kv_blocks or engine.max_seq_len, or build the "
            "release for more ranks or a smaller format",
        )
    ]


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"
