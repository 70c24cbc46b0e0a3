# SPDX-License-Identifier: Apache-2.0
"""Upstream's arguments that a deployment passes on as they are, and the refusal of those that a field of ours sets.

`engine.extra_llm_args` is for what the deployment has no field for. Its form is upstream's own (the mapping that
`trtllm-serve --extra_llm_api_options` takes): arguments by name, and a part of them, `kv_cache_config`, as a mapping.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, JsonValue

from ensemble_configs.spec.llm_argument_rows import (
    CACHE_TRANSCEIVER,
    KV_CACHE,
    KV_CACHE_OF_PYTORCH,
    LLM,
    LLM_OF_PYTORCH,
    LLM_OF_TENSORRT,
    LORA,
    MOE,
    PERF_KNOBS,
    SCHEDULER,
    SPECULATION,
    Row,
)
from ensemble_configs.spec.trtllm_facts import VersionFacts, facts_of, known_facts

FIELD = "extra_llm_args"


def _representable(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    for path, value in _leaves(arguments, ""):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{path} is {value}, and must be a value that JSON has")
    if dotted := [name for name in arguments if "." in name]:
        part, _, rest = dotted[0].partition(".")
        raise ValueError(f"{dotted[0]} must be nested, as upstream has it: {part}: {{{rest}: ...}}")
    return arguments


def _leaves(value: JsonValue, path: str) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, dict):
        for name, part in value.items():
            yield from _leaves(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _leaves(part, f"{path}[{number}]")
    else:
        yield path, value


ExtraArguments = Annotated[dict[str, JsonValue], AfterValidator(_representable)]

# Parts that we make, by argument: the table, where its fields are, and the field without which the part is not made.
_PARTS: dict[str, tuple[tuple[Row, ...], str, str | None]] = {
    "kv_cache_config": (KV_CACHE + KV_CACHE_OF_PYTORCH, "engine", None),
    "scheduler_config": (SCHEDULER, "engine", None),
    "moe_config": (MOE, "engine", None),
    "extended_runtime_perf_knob_config": (PERF_KNOBS, "engine.perf_knobs", None),
    "lora_config": (LORA, "engine.lora", "lora"),
    "cache_transceiver_config": (CACHE_TRANSCEIVER, "engine.cache_transceiver", "cache_transceiver"),
    "speculative_config": ((), "engine.speculation", "speculation"),
}
_NEVER = "is never set: no code from a checkpoint is run here"
_ALWAYS = "is always on: {}"
# Arguments that are made of something else than one field: what to use in their place, or why they are as they are.
_DERIVED: dict[str, str] = {
    "backend": "engine.provider",
    "skip_tokenizer_init": "engine.tokenizer_dir",
    "enable_lora": "engine.lora",
    "lora_config.lora_dir": "engine.lora.dir",
    "lora_config.lora_target_modules": "engine.lora.target_modules",
    "kv_cache_config.max_tokens": "engine.num_kv_blocks",
    "speculative_config.decoding_type": "engine.speculation.method",
}
_FIXED: dict[str, str] = {
    "trust_remote_code": _NEVER,
    "return_perf_metrics": _ALWAYS.format("a request asks with return_perf_metrics"),
    "enable_iter_perf_stats": _ALWAYS.format("the metrics come of it"),
    "iter_stats_max_iterations": "is set so that the metrics see every iteration",
    "speculative_config.allow_advanced_sampling": _ALWAYS.format("requests that sample count on it"),
    "mpi_session": "is made by the launcher",
    "_mpi_session": "is made by the launcher",
}
_WHERE = {"tensorrt": LLM + LLM_OF_TENSORRT, "pytorch": LLM + LLM_OF_PYTORCH}


def check_extra_llm_args(engine: BaseModel) -> None:
    """Refuse extra arguments that a field of the engine says already, and names that no version of upstream has.

    Args:
        engine: the spec of an engine of TensorRT-LLM.

    Raises:
        ValueError: names the first such argument, and what to do.
    """
    arguments: dict[str, JsonValue] = getattr(engine, FIELD)
    if not arguments:
        return
    provider, version = str(getattr(engine, "provider", "")), getattr(engine, "tensorrt_llm", None)
    for path, value in _paths(arguments):
        if (why := _why_not(path, value, engine)) is not None:
            raise ValueError(f"{FIELD}.{path} {why}")
    candidates = _candidates(version)
    unknown = [set(facts.unknown_arguments(provider, arguments)) for facts in candidates]
    if candidates and (nowhere := sorted(set.intersection(*unknown))):
        names = ", ".join(facts.version for facts in candidates)
        raise ValueError(
            f"{FIELD}.{nowhere[0]} is no argument of provider {provider!r} in TensorRT-LLM {names}; "
            f"{argument_meant(nowhere[0], provider, candidates)}"
        )


def _why_not(path: str, value: JsonValue, engine: BaseModel) -> str | None:
    owned = _owned(engine)
    if path in owned:
        return owned[path]
    _, place, field = _PARTS.get(path, ((), "", None))
    if field is not None and getattr(engine, field, None) is None:
        return f"needs {place}, which the deployment does not have; set it"
    if place and not isinstance(value, Mapping):
        return "must be a mapping of what goes beside the deployment's own fields"
    return None


def argument_meant(path: str, provider: str, candidates: Sequence[VersionFacts]) -> str:
    """Return what to do about a name that none of some versions has."""
    meant = next((near for facts in candidates if (near := facts.nearest_argument(provider, path))), None)
    return f"did you mean {meant}?" if meant else "leave it out, or name the newer version in engine.tensorrt_llm"


def _candidates(version: str | None) -> list[VersionFacts]:
    if version is None:
        return known_facts()
    facts = facts_of(version)
    return [] if facts is None else [facts]


def _paths(arguments: Mapping[str, JsonValue]) -> Iterator[tuple[str, JsonValue]]:
    """Yield arguments by name, and the contents of a part that we make by their dotted paths."""
    for name, value in arguments.items():
        yield name, value
        if name in _PARTS and isinstance(value, Mapping):
            yield from ((f"{name}.{key}", part) for key, part in value.items())


def _owned(engine: BaseModel) -> dict[str, str]:
    """Return what may not be passed on, with the reason as the end of a sentence."""
    found = {row.argument: f"engine.{row.field}" for row in _WHERE[getattr(engine, "provider", "")]} | _DERIVED
    for part, (rows, place, _) in _PARTS.items():
        found |= {f"{part}.{row.argument}": f"{place}.{row.field}" for row in rows}
    if (speculation := getattr(engine, "speculation", None)) is not None:
        rows = SPECULATION[speculation.method][1]
        found |= {f"speculative_config.{row.argument}": f"engine.speculation.{row.field}" for row in rows}
        if speculation.method == "mtp":  # what later versions call num_nextn_predict_layers
            found["speculative_config.max_draft_len"] = "engine.speculation.num_nextn_predict_layers"
    if not getattr(engine, "is_cuda_graph", True):
        found["cuda_graph_config"] = "engine.is_cuda_graph"
    return {path: f"is what {field} says; set that" for path, field in found.items()} | _FIXED
