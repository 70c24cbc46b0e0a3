# SPDX-License-Identifier: Apache-2.0
"""The typed interface of OpenVINO GenAI: how its pipeline is loaded, and our sampling parameters in its words.

The package ships no types that mypy reads; the protocols here are the part of it that we use.
"""

import os
import secrets
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import numpy as np
import openvino
import openvino_genai

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.openvino.openvino_beams import set_beams
from serving.engines.openvino.openvino_drafting import draft_properties, set_drafting
from serving.engines.seam.base import FinishReason, SamplingParams
from trireme.base.errors import RequestError, SpecError

# Fixed for the CPU, whatever the precision. Source: openvino.genai 2026.4, kv_cache_manager.hpp, cpu_block_size.
KV_BLOCK_TOKENS = 32

# A whole block: prefix caching would share a part of one with the first requests (`openvino_shared_blocks`).
WARM_UP_IDS = (0,) * KV_BLOCK_TOKENS

# GenerationFinishReason by value: comparing its members costs a microsecond each.
FINISH_REASONS: dict[int, FinishReason | None] = {0: None, 1: FinishReason.STOP, 2: FinishReason.LENGTH}


class _Enum(Protocol):
    value: int


class Output(Protocol):
    """The tokens that one sequence generated since the last read."""

    generated_ids: list[int]  # the end token included
    generated_log_probs: list[float]  # one for each; zeros where not asked for, and of beams always there
    score: float  # of a beam: its log probability over its length to the power of the penalty
    finish_reason: _Enum


class Handle(Protocol):
    """A request in the pipeline; dropping the handle ends the request."""

    def can_read(self) -> bool:
        """Return whether something has not been read."""

    def read(self) -> dict[int, Output]:
        """Return the oldest output not read, by sequence, and wait if there is none.

        The output may be empty when the request has ended.
        """

    def get_status(self) -> object:
        """Return the request's GenerationStatus."""

    def cancel(self) -> None:
        """End the request in the next step; nothing can be read from now on."""


class Metrics(Protocol):
    """The measurements of the last step, taken before its finished requests were freed."""

    cache_usage: float  # per cent of the blocks; those kept for reuse by prefix caching count as free


class Pipeline(Protocol):
    """The interface of openvino_genai.ContinuousBatchingPipeline on token ids."""

    def add_request(self, request_id: int, input_ids: object, generation_config: object) -> Handle:
        """Start a request; its id must differ from those of all that have not finished."""

    def step(self) -> None:
        """Run one iteration; harmless without requests."""

    def has_non_finished_requests(self) -> bool:
        """Return whether a request runs, or is cancelled and holds blocks."""

    def get_metrics(self) -> Metrics:
        """Return the measurements of the last step."""


IGNORED: object = openvino_genai.GenerationStatus.IGNORED


def load_pipeline(spec: OpenVinoEngineSpec) -> Pipeline:
    """Load and compile the model, and allocate its KV cache by running a block of tokens; needs no tokenizer there.

    Raises:
        SpecError: OpenVINO cannot load the model, or not in this way; this CPU has not the precision.
    """
    _check_kv_precision(spec)
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", str(_KERNELS_KEPT))  # read when the first kernel is made
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = spec.max_num_batched_tokens
    scheduler.max_num_seqs = spec.max_num_seqs
    scheduler.num_kv_blocks = spec.num_kv_blocks
    scheduler.enable_prefix_caching = spec.is_prefix_caching
    scheduler.dynamic_split_fuse = True  # chunked prefill beside decoding
    try:
        pipeline: Pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(spec.dir), scheduler, "CPU", _properties(spec) | draft_properties(spec, scheduler)
        )
        sampling = SamplingParams(max_tokens=1)
        config = generation_config(sampling, end_ids=(), vocab_size=1)
        set_drafting(config, spec, sampling)
        handle = pipeline.add_request(0, token_tensor(list(WARM_UP_IDS)), config)
        while pipeline.has_non_finished_requests():
            pipeline.step()
        handle.read()
    except (RuntimeError, MemoryError) as exc:
        raise SpecError(f"OpenVINO cannot load {spec.dir}: {last_line(exc)}", field="engine.dir") from exc
    return pipeline


def _check_kv_precision(spec: OpenVinoEngineSpec) -> None:
    """Check that this CPU has the KV cache's precision.

    On a CPU without bf16 OpenVINO runs the model in f32 and meets the other type only at its first token.

    Raises:
        SpecError: the CPU does not have it.
    """
    if spec.kv_cache_precision == "bf16" and not has_bf16():
        raise SpecError(
            "engine.kv_cache_precision: this CPU has no bf16 instructions; set auto, f16 or u8",
            field="engine.kv_cache_precision",
            value="bf16",
        )


def has_bf16() -> bool:
    """Return whether OpenVINO computes in bf16 on this CPU."""
    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def numeric_properties(spec: OpenVinoEngineSpec) -> dict[str, object]:
    """Return the properties that say in which number formats OpenVINO computes and keeps the KV cache."""
    properties: dict[str, object] = {}
    if spec.execution_mode == "accuracy":
        properties["EXECUTION_MODE_HINT"] = "ACCURACY"
    if spec.kv_cache_precision != "auto":
        properties["KV_CACHE_PRECISION"] = spec.kv_cache_precision
    return properties


def _properties(spec: OpenVinoEngineSpec) -> dict[str, object]:
    properties = numeric_properties(spec) | {"CPU_RUNTIME_CACHE_CAPACITY": _KERNELS_KEPT}
    if spec.num_threads is not None:
        properties |= {"INFERENCE_NUM_THREADS": spec.num_threads, "sampler_num_threads": spec.num_threads}
    if spec.lora_file is not None:
        # Static: the adapter of a pipeline is one for all its requests anyway, and so it costs least.
        adapter = openvino_genai.Adapter(str(spec.lora_file))
        mode = openvino_genai.AdapterConfig.Mode.MODE_STATIC
        properties["adapters"] = openvino_genai.AdapterConfig(adapter, mode=mode)
    return properties


# The CPU plugin, and oneDNN below it, keep compiled kernels for each number of tokens in a step: about 1 MiB for one of
# the 5M demo model. With their own limits (5,000 and 1,024) the process grew from 280 to 790 MiB in 20,000 requests and
# was still growing; with 32 it stays at 284. Price: 0 to 10 % of the CPU time (2026.4.1, 2 cores, November 2026).
_KERNELS_KEPT = 32


class _Row(NamedTuple):
    field: str  # of SamplingParams
    attribute: str  # of GenerationConfig
    unset: float | None = None  # the value that leaves OpenVINO's own default, which means the same
    is_for_greedy: bool = False


ROWS = (
    _Row("max_tokens", "max_new_tokens", is_for_greedy=True),
    _Row("min_tokens", "min_new_tokens", unset=0, is_for_greedy=True),
    _Row("temperature", "temperature"),
    _Row("top_k", "top_k", unset=0),
    _Row("top_p", "top_p", unset=0.0),
    _Row("seed", "rng_seed"),
    _Row("repetition_penalty", "repetition_penalty", is_for_greedy=True),
    _Row("presence_penalty", "presence_penalty", is_for_greedy=True),
    _Row("frequency_penalty", "frequency_penalty", is_for_greedy=True),
    _Row("return_log_probs", "logprobs", unset=False, is_for_greedy=True),
)


def generation_config(
    sampling: SamplingParams, *, end_ids: Iterable[int], vocab_size: int
) -> openvino_genai.GenerationConfig:
    """Return our sampling parameters as a checked GenerationConfig.

    Args:
        sampling: `max_tokens` wins over `min_tokens`.
        end_ids: the model's own end tokens.
        vocab_size: an `end_id` outside is none.

    Raises:
        RequestError: OpenVINO refuses the parameters.
    """
    config = openvino_genai.GenerationConfig()
    config.do_sample = not sampling.is_greedy
    config.rng_seed = secrets.randbits(64)  # its default is the same for every request
    for row in ROWS:
        value = getattr(sampling, row.field)
        if value != row.unset and (row.is_for_greedy or config.do_sample):
            setattr(config, row.attribute, value)
    set_beams(config, sampling)
    config.min_new_tokens = min(config.min_new_tokens, sampling.max_tokens)
    _set_end_ids(config, end_ids if sampling.end_id is None else (sampling.end_id,), vocab_size)
    try:
        config.validate()
    except RuntimeError as exc:
        raise RequestError(f"OpenVINO refuses the sampling parameters: {last_line(exc)}") from exc
    return config


def _set_end_ids(config: openvino_genai.GenerationConfig, end_ids: Iterable[int], vocab_size: int) -> None:
    # min_new_tokens writes to the logits at each end token, and outside the vocabulary that kills the process.
    known_ids = [token_id for token_id in end_ids if 0 <= token_id < vocab_size]
    config.ignore_eos = not known_ids
    if not known_ids:
        known_ids = [0]  # left empty, the pipeline would put the model's own, or -1 and refuse it
        config.min_new_tokens = 0
    config.eos_token_id = known_ids[0]
    config.stop_token_ids = set(known_ids)


def token_tensor(token_ids: list[int]) -> object:
    """Return token ids as the pipeline takes them, ``[1, num_tokens] int64``."""
    return openvino.Tensor(np.array([token_ids], dtype=np.int64))


def last_line(exc: Exception) -> str:
    """Return the sentence in an OpenVINO error; source locations come before it."""
    return (str(exc).strip() or repr(exc)).splitlines()[-1]
