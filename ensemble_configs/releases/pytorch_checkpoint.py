# SPDX-License-Identifier: Apache-2.0
"""Quantization of a checkpoint for the PyTorch backend, and the refusal of deployments that it cannot serve."""

import json
from collections.abc import Iterator
from pathlib import Path

from ensemble_configs.releases.built_engine import Mismatch
from ensemble_configs.releases.context_attention import why_not_on_pytorch
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec
from trireme.base.errors import SpecError

_INT4_AWQ = frozenset({"W4A16_AWQ", "AWQ"})  # ModelOpt's name, and that of checkpoints of AutoAWQ

# Architectures with linear attention. Source: `MambaHybridCacheManager` of TensorRT-LLM 1.2 asserts that block reuse is
# off.
_WITH_STATES = frozenset({"Qwen3NextForCausalLM"})


def checkpoint_algos(folder: Path) -> tuple[str | None, str | None]:
    """Return how weights and KV cache of a checkpoint are quantized, in the words of TensorRT-LLM; None is 16 bits.

    ModelOpt writes hf_quant_config.json; published FP8 checkpoints with blocks have a quantization_config.

    Raises:
        SpecError: a file is missing or not JSON.
    """
    file = folder / "hf_quant_config.json"
    if file.is_file():
        found = _load(file).get("quantization")
        facts = found if isinstance(found, dict) else {}
        return _upper(facts.get("quant_algo")), _upper(facts.get("kv_cache_quant_algo"))
    config = _load(folder / "config.json").get("quantization_config")
    if not isinstance(config, dict):
        return None, None
    method = config.get("quant_method")
    if method == "fp8" and config.get("weight_block_size") is not None:
        return "FP8_BLOCK_SCALES", None
    if method == "modelopt":
        return _upper(config.get("quant_algo")), _upper(config.get("kv_cache_quant_algo"))
    return _upper(method), None


def checkpoint_mismatches(spec: PyTorchEngineSpec) -> Iterator[Mismatch]:
    """Yield what a deployment asks of a checkpoint that the PyTorch backend cannot serve.

    Raises:
        SpecError: the checkpoint's files cannot be read.
    """
    algo, kv_algo = checkpoint_algos(spec.dir)
    kv_format = spec.kv_cache_dtype if spec.kv_cache_dtype != "auto" else (kv_algo or "auto").lower()
    architecture = _architecture(spec.dir)
    if spec.is_block_reuse and architecture in _WITH_STATES:
        why = (
            f"{architecture} cannot have: TensorRT-LLM keeps a state of each running sequence in place of most KV "
            "blocks, and does not start with it"
        )
        yield Mismatch("engine.is_block_reuse", True, why, "false", "set it to false")
    reason = why_not_on_pytorch("int4_awq" if algo in _INT4_AWQ else "", kv_format)
    if reason is not None:
        why = f"cannot be served: {reason}, so that prefill fails"
        next_step = "build the checkpoint with kv_format auto, or serve it as an engine (backend tensorrt)"
        yield Mismatch("engine.kv_cache_dtype", spec.kv_cache_dtype, why, "a KV cache in 16 bits", next_step)


def _architecture(folder: Path) -> str | None:
    architectures = _load(folder / "config.json").get("architectures")
    return str(architectures[0]) if isinstance(architectures, list) and architectures else None


def _upper(value: object) -> str | None:
    return value.upper() if isinstance(value, str) else None


def _load(file: Path) -> dict[str, object]:
    try:
        data = json.loads(file.read_bytes())
    except (OSError, ValueError) as exc:
        raise SpecError(f"cannot read {file}: {exc}", file=file) from exc
    return data if isinstance(data, dict) else {}
