# SPDX-License-Identifier: Apache-2.0
"""The part of `tensorrt_llm` that we use, as types; loaded by name, since it is not there on most machines."""

import functools
import importlib
import importlib.util
import inspect
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from serving.engines.seam.packed_array import Array
from serving.engines.tensorrt_llm.trtllm_perf import RequestPerfMetrics
from trireme.base.errors import SpecError

Make = Callable[..., object]


class Tensor(Protocol):
    """The interface of torch's tensors, on a GPU or not."""

    def float(self) -> "Tensor":
        """Return the tensor as float32."""

    def cpu(self) -> "Tensor":
        """Return the tensor in this machine's memory."""

    def numpy(self) -> Array:
        """Return the tensor as an array; not of bfloat16."""


class LoraRequest(Protocol):
    """The interface of LoRARequest, the adapter of a request."""

    lora_name: str
    lora_int_id: int


class Disaggregated(Protocol):
    """The interface of DisaggregatedParams, which the server of the prefill gives to that of the decode."""

    first_gen_tokens: list[int] | None
    ctx_request_id: int | None
    opaque_state: bytes | None
    draft_tokens: list[int] | None


class Completion(Protocol):
    """The interface of CompletionOutput: what one sequence has so far; the lists grow in place."""

    token_ids: list[int]
    logprobs: Sequence[object]  # for each token a dict of Logprob by token id, or a float
    finish_reason: str | None  # stop, length, timeout, cancelled
    stop_reason: int | str | None  # which of `stop_token_ids`; None for `end_id`
    cumulative_logprob: float | None  # where log probabilities were asked for
    generation_logits: Tensor | None  # [tokens, vocab], where asked for
    disaggregated_params: Disaggregated | None  # of a context-only request
    request_perf_metrics: RequestPerfMetrics | None


class Result(Protocol):
    """The interface of RequestOutput, which, iterated asynchronously, gives itself after every change."""

    outputs: Sequence[Completion]  # the beams, the best first; one without beam search
    context_logits: Tensor | None  # [prompt tokens, vocab], where asked for
    finished: bool

    def abort(self) -> None:
        """End the request; its last change says `cancelled`."""

    def __aiter__(self) -> AsyncIterator["Result"]: ...


class Llm(Protocol):
    """The interface of LLM, which batches in processes of its own."""

    def generate_async(self, inputs: object, **arguments: object) -> Result:
        """Queue a request; inside a running event loop."""

    def get_stats_async(self, timeout: float | None) -> AsyncIterator[dict[str, object]]:
        """Yield a row an iteration until none comes for `timeout` seconds, None: for ever; nothing before a request."""

    def get_kv_cache_events_async(self, timeout: float | None) -> AsyncIterator[dict[str, object]]:
        """Yield what the KV cache has got and lost until nothing comes for `timeout` seconds; as JSON objects."""

    def shutdown(self) -> None:
        """End its processes."""


@dataclass(frozen=True)
class Upstream:
    """An installation of TensorRT-LLM."""

    version: str
    make_llm: Callable[..., Llm]
    make_sampling_params: Make
    make_guided_decoding_params: Make
    make_lora_request: Callable[..., LoraRequest]
    make_retention_config: Make
    make_retention_range: Make
    make_disaggregated_params: Make
    grammar: object | None  # xgrammar's class, which upstream brings; None: it is not there
    make_tensor: Callable[[list[float]], object]  # torch's, float32; upstream brings it
    request_error: type[Exception]  # raised for one request; any other exception means that the executor is broken
    configs: object  # the module with KvCacheConfig and all other parts of the LLM's arguments
    call_arguments: frozenset[str]  # arguments of generate_async
    sampling_arguments: frozenset[str]  # arguments of SamplingParams

    @property
    def has_samplers(self) -> bool:
        """Return whether PyTorch's sampler can be chosen."""
        return "sampler_type" in self.fields_of("TorchLlmArgs")

    def fields_of(self, name: str) -> frozenset[str]:
        """Return the arguments of a class that are not deprecated: upstream drops those without a word.

        Raises:
            SpecError: this version has no such class.
        """
        cls = self._class(name)
        fields = getattr(cls, "model_fields", None) or getattr(cls, "__dataclass_fields__", {})
        return frozenset(field for field, of in fields.items() if not getattr(of, "deprecated", None))

    def first_of(self, names: Sequence[str]) -> str:
        """Return the first class that this version has; the last if it has none."""
        return next((name for name in names if hasattr(self.configs, name)), names[-1])

    def make_config(self, name: str, **arguments: object) -> object:
        """Return a part of the LLM's arguments, by the name of its class.

        Raises:
            SpecError: this version has no such class, or refuses an argument, or sets it back.
        """
        make = self._class(name)
        try:
            made = make(**arguments)
        except (TypeError, ValueError) as exc:
            raise SpecError(f"TensorRT-LLM {self.version} refuses {name}: {one_line(exc)}", field="engine") from exc
        for argument, value in arguments.items():
            if isinstance(value, bool) and getattr(made, argument, value) is not value:
                raise SpecError(
                    f"TensorRT-LLM {self.version} sets {argument} of {name} to {not value}, whatever is asked for; "
                    "leave it out",
                    field="engine",
                    value=value,
                )
        return made

    def _class(self, name: str) -> Make:
        make: Make | None = getattr(self.configs, name, None)
        if make is None:
            raise SpecError(f"TensorRT-LLM {self.version} has no {name}; install 1.2.1", field="engine.provider")
        return make


def one_line(exc: BaseException) -> str:
    """Return what an error of upstream says, in one line."""
    return " ".join(str(exc).split()) or repr(exc)


def installed_version() -> str:
    """Return the version of the installed `tensorrt_llm`."""
    return str(importlib.import_module("tensorrt_llm").__version__)


def _grammar() -> object | None:
    is_there = importlib.util.find_spec("xgrammar") is not None
    return importlib.import_module("xgrammar").Grammar if is_there else None


def load_upstream(llm_module: str) -> Upstream:
    """Import `tensorrt_llm`, which takes seconds; `llm_module` is where the wanted LLM is."""
    llm = importlib.import_module(llm_module).LLM
    sampling = importlib.import_module("tensorrt_llm.sampling_params")
    executor = importlib.import_module("tensorrt_llm.executor")
    torch = importlib.import_module("torch")
    retention_config = importlib.import_module("tensorrt_llm.bindings.executor").KvCacheRetentionConfig
    return Upstream(
        version=installed_version(),
        make_llm=llm,
        make_sampling_params=sampling.SamplingParams,
        make_guided_decoding_params=sampling.GuidedDecodingParams,
        make_lora_request=executor.LoRARequest,
        make_retention_config=retention_config,
        make_retention_range=retention_config.TokenRangeRetentionConfig,
        make_disaggregated_params=importlib.import_module("tensorrt_llm.disaggregated_params").DisaggregatedParams,
        grammar=_grammar(),
        make_tensor=functools.partial(torch.tensor, dtype=torch.float32),
        request_error=executor.RequestError,
        configs=importlib.import_module("tensorrt_llm.llmapi.llm_args"),
        call_arguments=frozenset(inspect.signature(llm.generate_async).parameters),
        sampling_arguments=frozenset(inspect.signature(sampling.SamplingParams).parameters),
    )
