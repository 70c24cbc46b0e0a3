# SPDX-License-Identifier: Apache-2.0
"""The refusal of deployments of provider `vllm` with a quantized checkpoint that vLLM cannot compute there.

Sources: vLLM 0.32 and what its CPU build did with such checkpoints (docs/vllm_behaviour.md, quantized checkpoints).
"""

import json
from collections.abc import Iterator, Mapping

from ensemble_configs.releases.built_engine import Mismatch
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from trireme.base.errors import SpecError


def vllm_mismatches(spec: VllmEngineSpec) -> Iterator[Mismatch]:
    """Yield what a deployment asks of a checkpoint that vLLM cannot serve there; on GPUs vLLM itself says.

    Raises:
        SpecError: the checkpoint's config.json cannot be read.
    """
    if not spec.is_on_cpu:
        return
    file = spec.dir / "config.json"
    try:
        config = json.loads(file.read_bytes())
    except (OSError, ValueError) as exc:
        raise SpecError(f"cannot read {file}: {exc}", file=file) from exc
    facts = config.get("quantization_config") if isinstance(config, dict) else None
    if isinstance(facts, Mapping) and (why := _why_not_on_cpus(facts)) is not None:
        yield Mismatch(
            "engine.device",
            "cpu",
            f"does not compute the checkpoint in {spec.dir}: {why}",
            "a format that vLLM computes on CPUs",
            "build the release with format fp8_rowwise, smoothquant, int4_gptq or int4_awq, or serve it on a GPU",
        )


def _why_not_on_cpus(facts: Mapping[str, object]) -> str | None:
    """Return why vLLM's CPU build cannot compute a checkpoint; None: it can, or nothing is known against it."""
    why = "FP8 with one scale for a whole matrix fails at the first step"
    method = facts.get("quant_method")
    if method == "fp8":  # with blocks a processor with AMX computes it, for which the kernel looks
        return why if facts.get("weight_block_size") is None else None
    if method == "modelopt":
        return why if facts.get("quant_algo") == "FP8" else None
    groups = facts.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        if isinstance(weights, Mapping) and (weights.get("type"), weights.get("strategy")) == ("float", "tensor"):
            return why
    return None
