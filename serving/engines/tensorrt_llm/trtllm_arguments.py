# SPDX-License-Identifier: Apache-2.0
"""An engine's spec as the arguments of `tensorrt_llm`'s LLM, by the table of `ensemble_configs.spec.llm_argument_rows`.

What the installed version has is asked of its classes. A setting of ours that it has no argument for is left out where
it is our default, and refused by name where it is not.
"""

from collections.abc import Mapping

from pydantic import BaseModel

from ensemble_configs.spec.engine.lora_spec import LoraSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from ensemble_configs.spec.extra_llm_args import FIELD
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
    SAMPLED_SPECULATION,
    SCHEDULER,
    SPECULATION,
    Row,
)
from serving.engines.seam.adapter_folder import engine_modules
from serving.engines.tensorrt_llm.trtllm_upstream import Upstream
from trireme.base.errors import SpecError

TrtLlmSpec = TensorRtEngineSpec | PyTorchEngineSpec

_LLM_CLASSES = {"tensorrt": "TrtLlmArgs", "pytorch": "TorchLlmArgs"}


def llm_arguments(
    spec: TrtLlmSpec, upstream: Upstream, *, kv_block_tokens: int, kv_event_buffer: int = 0
) -> dict[str, object]:
    """Return the arguments for the LLM of this spec; parts are upstream's own objects, which check themselves.

    Args:
        spec: every setting of it ends up in an argument.
        upstream: makes the parts.
        kv_block_tokens: of the engine, for `num_kv_blocks`, which upstream counts in tokens.
        kv_event_buffer: events of the KV cache that upstream keeps until they are read; 0: it tells none.

    Raises:
        SpecError: the installed version lacks an argument, or refuses its value.
    """
    return _Arguments(spec, upstream).of_llm(kv_block_tokens, kv_event_buffer)


class _Arguments:
    """The arguments of one spec for one installed version."""

    def __init__(self, spec: TrtLlmSpec, upstream: Upstream) -> None:
        self._spec = spec
        self._upstream = upstream
        self._extra = dict(spec.extra_llm_args)

    def of_llm(self, kv_block_tokens: int, kv_event_buffer: int) -> dict[str, object]:
        spec = self._spec
        kv_cache: dict[str, object] = {}
        own = self._extra.get("kv_cache_config")
        if kv_event_buffer and not (isinstance(own, dict) and own.get("event_buffer_max_size")):
            kv_cache["event_buffer_max_size"] = kv_event_buffer
        if spec.num_kv_blocks is not None:
            kv_cache["max_tokens"] = spec.num_kv_blocks * kv_block_tokens
        is_pytorch = isinstance(spec, PyTorchEngineSpec)
        llm = _LLM_CLASSES[spec.provider]
        arguments = self._rows(spec, LLM + (LLM_OF_PYTORCH if is_pytorch else LLM_OF_TENSORRT), llm)
        arguments |= {"skip_tokenizer_init": spec.tokenizer_dir is None, "return_perf_metrics": True}
        arguments["scheduler_config"] = self._part("scheduler_config", ("SchedulerConfig",), spec, SCHEDULER)
        rows = KV_CACHE + (KV_CACHE_OF_PYTORCH if is_pytorch else ())
        arguments["kv_cache_config"] = self._part("kv_cache_config", ("KvCacheConfig",), spec, rows, kv_cache)
        arguments |= self._of_pytorch(spec) if isinstance(spec, PyTorchEngineSpec) else self._of_tensorrt(spec)
        if spec.lora is not None:
            arguments |= {"enable_lora": True, "lora_config": self._lora(spec.lora)}
        if spec.cache_transceiver is not None:
            arguments["cache_transceiver_config"] = self._part(
                "cache_transceiver_config", ("CacheTransceiverConfig",), spec.cache_transceiver, CACHE_TRANSCEIVER
            )
        if spec.speculation is not None:
            classes, draft_rows = SPECULATION[spec.speculation.method]
            sampled = {"allow_advanced_sampling": True} if spec.speculation.method in SAMPLED_SPECULATION else {}
            arguments["speculative_config"] = self._part(
                "speculative_config", classes, spec.speculation, draft_rows, sampled
            )
        self._refuse_unknown(self._extra, self._upstream.fields_of(llm), "")
        return arguments | self._extra  # what went into a part is taken out

    def _of_tensorrt(self, spec: TensorRtEngineSpec) -> dict[str, object]:
        name = "extended_runtime_perf_knob_config"
        knobs = self._part(name, ("ExtendedRuntimePerfKnobConfig",), spec.perf_knobs, PERF_KNOBS)
        return {"iter_stats_max_iterations": 1000, name: knobs}  # without the first an engine tells no stats

    def _of_pytorch(self, spec: PyTorchEngineSpec) -> dict[str, object]:
        arguments: dict[str, object] = {"enable_iter_perf_stats": True}  # without it there are no stats
        arguments["moe_config"] = self._part("moe_config", ("MoeConfig",), spec, MOE)
        if not spec.is_cuda_graph:
            arguments["cuda_graph_config"] = None
        return arguments

    def _lora(self, spec: LoraSpec) -> object:
        # No lora_dir: adapters come with the requests that name them. Upstream reads modules from a single folder only,
        # and of several refuses to start without modules (_torch/pyexecutor/_util.py, create_py_executor_instance).
        modules = {"lora_target_modules": sorted(engine_modules(spec))}
        return self._part("lora_config", ("LoraConfig",), spec, LORA, modules)

    def _part(
        self,
        argument: str,
        classes: tuple[str, ...],
        spec: BaseModel,
        rows: tuple[Row, ...],
        made: Mapping[str, object] | None = None,
    ) -> object:
        """Return a part of the arguments: the deployment's own fields, and what is passed on beside them."""
        name = self._upstream.first_of(classes)
        extra = self._extra.pop(argument, {})
        assert isinstance(extra, dict), "the spec has checked it"
        self._refuse_unknown(extra, self._upstream.fields_of(name), f"{argument}.")
        return self._upstream.make_config(name, **self._rows(spec, rows, name), **(made or {}), **extra)

    def _rows(self, spec: BaseModel, rows: tuple[Row, ...], name: str) -> dict[str, object]:
        known = self._upstream.fields_of(name)
        found: dict[str, object] = {}
        for row in rows:
            value = getattr(spec, row.field)
            converted = row.convert(value)
            if converted is None:
                continue
            if row.argument in known:
                found[row.argument] = converted
            elif value != type(spec).model_fields[row.field].default:
                raise SpecError(
                    f"{row.field} ({value}) cannot be honoured: {name} of TensorRT-LLM {self._upstream.version} has no "
                    f"{row.argument} any more, or ignores it; leave it out",
                    field=row.field,
                    value=value,
                )
        return found

    def _refuse_unknown(self, extra: Mapping[str, object], known: frozenset[str], path: str) -> None:
        for name in extra:
            if name not in known:
                raise SpecError(
                    f"engine.{FIELD}.{path}{name}: the installed TensorRT-LLM {self._upstream.version} has no such "
                    "argument, or ignores it; leave it out, or serve with a version that has it",
                    field=f"engine.{FIELD}",
                    value=f"{path}{name}",
                )
