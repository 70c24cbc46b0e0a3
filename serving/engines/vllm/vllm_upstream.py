# SPDX-License-Identifier: Apache-2.0
"""The part of `vllm` that we use, as types, and what its versions call it; loaded by name, in vLLM's environment alone.

Source: vllm 0.32.0, `vllm/v1/engine/__init__.py`, `core.py`, `core_client.py`, `vllm/sampling_params.py`.
"""

import contextlib
import functools
import importlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serving.engines.vllm.vllm_groups import meet_in, share_one_group
from trireme.base.errors import SpecError

_log = logging.getLogger("trireme.engine")

KNOWN_VERSIONS = ("0.32",)  # that were read and run

FOLDER = "VLLM_RPC_BASE_PATH"  # environment: the folder of an engine's sockets and files, which goes with its processes

_PUBLISHER = "trireme"  # among the publishers of KV events
# FinishReason by value, an IntEnum.
STOP, LENGTH, ABORT, ERROR = 0, 1, 2, 3
SCHEDULED, PREEMPTED = 2, 3  # EngineCoreEventType by value


class Event(Protocol):
    """The interface of EngineCoreEvent."""

    type: int
    timestamp: float  # of the monotonic clock, seconds


class PrefillStats(Protocol):
    """The interface of PrefillStats, with a request's first output."""

    num_cached_tokens: int
    num_local_cached_tokens: int
    num_external_cached_tokens: int  # from another engine


class SchedulerStats(Protocol):
    """The interface of SchedulerStats, of a step."""

    kv_connector_stats: Mapping[str, Sequence[float]] | None  # `transfer_duration`, seconds of each that has ended


class LogProbs(Protocol):
    """The interface of LogprobsLists: ``[tokens, 1 + asked for]``, the chosen token first."""

    logprobs: Sequence[Sequence[float]]


class Output(Protocol):
    """The interface of EngineCoreOutput: what one request has got in a step."""

    request_id: str
    new_token_ids: list[int]
    new_logprobs: LogProbs | None
    finish_reason: int | None
    events: list[Event] | None
    prefill_stats: PrefillStats | None
    kv_transfer_params: dict[str, Any] | None  # with the last, of a request whose blocks wait for another engine


class SpecDecodeMetrics(Protocol):
    """The interface of RequestSpecDecodeMetrics."""

    num_draft_tokens: int
    histogram: Sequence[int]  # steps by the number of drafts that were accepted


class Request(Protocol):
    """The interface of the scheduler's request."""

    request_id: str
    kv_transfer_params: Mapping[str, Any] | None
    num_preemptions: int
    spec_decode_metrics: SpecDecodeMetrics | None  # None: without speculative decoding


class BlockPool(Protocol):
    """The interface of the pool of KV blocks; one of them is never used."""

    num_gpu_blocks: int

    def get_num_free_blocks(self) -> int:
        """Return how many blocks a new request could take, those kept for reuse included."""


class Scheduler(Protocol):
    """The interface of the scheduler."""

    running: Sequence[Request]
    kv_cache_manager: Any  # `block_pool`
    kv_event_publisher: Any

    def has_requests(self) -> bool:
        """Return whether a step has anything to do, ended requests to forget included."""

    def get_request_counts(self) -> tuple[int, int]:
        """Return how many requests run and how many wait."""


class Core(Protocol):
    """The interface of EngineCore in the process that made it."""

    scheduler: Scheduler
    vllm_config: Any
    model_executor: Any
    step_fn: Callable[[], tuple[Mapping[int, Any] | None, bool]]

    def preprocess_add_request(self, request: object) -> tuple[Request, int]:
        """Return the scheduler's request, and begin to compile its grammar."""

    def add_request(self, request: Request, request_wave: int = 0) -> None:
        """Queue a request."""

    def abort_requests(self, request_ids: list[str]) -> None:
        """End requests and free their blocks at once."""

    def post_step(self, model_executed: bool) -> None:
        """Hand drafts on to the scheduler, after each step."""

    def add_lora(self, lora_request: object) -> bool:
        """Load an adapter, unless its number is there."""

    def remove_lora(self, lora_id: int) -> bool:
        """Free an adapter."""

    def list_loras(self) -> set[int]:
        """Return the numbers of the adapters in host memory."""

    def shutdown(self) -> None:
        """End the executor and its workers."""


class UpstreamKvEvent(Protocol):
    """The interface of BlockStored, BlockRemoved and AllBlocksCleared, each with a part of this."""

    block_hashes: Sequence[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: Sequence[int]
    block_size: int
    lora_name: str | None
    extra_keys: Sequence[Sequence[object] | None] | None
    group_idx: int | None
    kv_cache_spec_kind: str | None


class KvEventQueue:
    """A publisher of KV events, as the scheduler calls it at the end of a step, that keeps them to be taken."""

    def __init__(self, **_settings: object) -> None:
        self._events: list[UpstreamKvEvent] = []

    def publish(self, events: Any) -> None:
        """Take a KVEventBatch."""
        self._events += events.events

    def take(self) -> list[UpstreamKvEvent]:
        """Return the events since the last call."""
        taken, self._events = self._events, []
        return taken

    def get_publisher_config(self) -> None:
        """Return None: there is no socket that others could be told of."""

    def shutdown(self) -> None:
        """Do nothing: there is no socket."""


@dataclass(frozen=True)
class Upstream:
    """An installation of vLLM."""

    version: str
    device: str  # "cpu", "cuda", ...: what it was built for
    make_engine_args: Callable[..., Any]
    make_core: Callable[[Any], Core]
    make_sampling_params: Callable[..., Any]
    make_structured_outputs: Callable[..., Any]
    make_request: Callable[..., object]
    make_lora_request: Callable[..., object]
    make_kv_transfer_config: Callable[..., object]
    transfer_in_steps: Callable[[], None]
    check_guide: Callable[[Any], None]  # of sampling parameters
    make_kv_events_config: Callable[[], object]  # with which the scheduler has a KvEventQueue
    request_errors: tuple[type[Exception], ...]  # raised for what a request asks


def installed_version() -> str:
    """Return the version of the installed `vllm`."""
    return str(importlib.import_module("vllm.version").__version__)


def check_version(asked: str | None, installed: str) -> None:
    """Refuse a version that is older than those that are known, and warn of a newer one.

    Raises:
        SpecError: the installed version is older, or another than the deployment names.
    """
    if asked is not None and _numbers(asked) != _numbers(installed):
        raise SpecError(
            f"engine.vllm is {asked}, and vLLM {installed} is installed; install that version in engine.venv_dir, or "
            "name this one",
            field="engine.vllm",
            value=asked,
            version=installed,
        )
    if _numbers(installed) < _numbers(KNOWN_VERSIONS[0]):
        raise SpecError(
            f"vLLM {installed} is installed, and provider 'vllm' is written for {', '.join(KNOWN_VERSIONS)}; install "
            "one of those in engine.venv_dir",
            field="engine.provider",
            value="vllm",
            version=installed,
        )
    if _numbers(installed) > _numbers(KNOWN_VERSIONS[-1]):
        _log.warning(
            "vLLM %s is newer than what provider 'vllm' is written for (%s): its behaviour is taken for that of %s",
            installed, ", ".join(KNOWN_VERSIONS), KNOWN_VERSIONS[-1],
        )  # fmt: skip


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def load_upstream() -> Upstream:
    """Import `vllm`, which takes seconds."""
    arguments = importlib.import_module("vllm.engine.arg_utils")
    sampling = importlib.import_module("vllm.sampling_params")
    engine = importlib.import_module("vllm.v1.engine")
    return Upstream(
        version=installed_version(),
        device=str(importlib.import_module("vllm.platforms").current_platform.device_type),
        make_engine_args=arguments.EngineArgs,
        make_core=_make_core,
        make_sampling_params=sampling.SamplingParams,
        make_structured_outputs=sampling.StructuredOutputsParams,
        make_request=engine.EngineCoreRequest,
        make_lora_request=importlib.import_module("vllm.lora.request").LoRARequest,
        make_kv_transfer_config=importlib.import_module("vllm.config").KVTransferConfig,
        transfer_in_steps=transfer_in_steps,
        request_errors=(TypeError, ValueError, importlib.import_module("vllm.exceptions").VLLMClientError),
        check_guide=importlib.import_module("vllm.v1.structured_output.backend_xgrammar").validate_xgrammar_grammar,
        make_kv_events_config=_make_kv_events_config,
    )


def transfer_in_steps() -> None:
    """Have the connector move blocks in the engine's steps, on the cores that the engine has.

    NIXL's thread polls without a pause and takes a whole core of the host, idle or not (`pthrDelay = 0` in `nixl_agent`
    of nixl 1.5.1), which an engine on the host needs for itself. An engine with blocks to move has steps. vLLM has no
    setting for the thread. And its connector binds the thread that steps to the last core of the host, whichever cores
    the deployment gives, and those of other engines with it (`nixl/base_worker.py`, `rsv_cores_for_kv`).
    """
    worker: Any = importlib.import_module("vllm.distributed.kv_transfer.kv_connector.v1.nixl.base_worker")
    if worker.nixl_agent_config is not None:  # None: there is no nixl, as vLLM says when it makes the connector
        worker.nixl_agent_config = functools.partial(worker.nixl_agent_config, enable_prog_thread=False)
    platform: Any = importlib.import_module("vllm.platforms.cpu").CpuPlatform
    platform.discover_numa_topology = list  # asked for that core alone


def _make_core(engine_args: Any) -> Core:
    """Load a model, and return the engine core around it, in this process; its ranks in processes of their own."""
    meet_in(os.environ.get(FOLDER) or tempfile.gettempdir())
    usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.ENGINE_CONTEXT
    executor = importlib.import_module("vllm.v1.executor").Executor
    config = engine_args.create_engine_config(usage)
    core: Core = importlib.import_module("vllm.v1.engine.core").EngineCore(
        config, executor.get_class(config), log_stats=True
    )
    if config.parallel_config.world_size_across_dp == 1 and config.device_config.device_type == "cpu":
        share_one_group()
    return core


def _make_kv_events_config() -> object:
    factory = importlib.import_module("vllm.distributed.kv_events").EventPublisherFactory
    with contextlib.suppress(KeyError):  # an engine before this one has registered it
        factory.register_publisher(_PUBLISHER, KvEventQueue)
    config = importlib.import_module("vllm.config").KVEventsConfig(enable_kv_cache_events=True, publisher="null")
    config.publisher = _PUBLISHER  # its type names vLLM's own alone, and is checked when it is made
    return config


class LoraWeights(Protocol):
    """The interface of LoRALayerWeights: one tensor of each side, or for a packed module one of each part."""

    lora_a: Any
    lora_b: Any


class LoraLayer(Protocol):
    """The interface of a layer that adapters change.

    For each of its parts ``[slots, 1, rank, in]`` and ``[slots, 1, out, rank]``.
    """

    lora_a_stacked: Sequence[Any]
    lora_b_stacked: Sequence[Any]


class LoraModel(Protocol):
    """The interface of LoRAModel: a loaded adapter."""

    loras: Mapping[str, LoraWeights]  # by module


class LoraManager(Protocol):
    """The interface of LoRAModelManager: the adapters of a model, and its layers."""

    modules: Mapping[str, LoraLayer]
    packed_modules: Mapping[str, Sequence[str]]  # for a module of several parts: what adapters call them

    def get_adapter(self, adapter_id: int) -> LoraModel:
        """Return a loaded adapter."""


def lora_manager(core: Core) -> LoraManager:
    """Return the manager of an engine's adapters, where its one rank is in this process."""
    manager: LoraManager = core.model_executor.driver_worker.worker.model_runner.lora_manager._adapter_manager
    return manager


def one_line(exc: BaseException) -> str:
    """Return what an error of vLLM says, in one line."""
    return " ".join(str(exc).split()) or repr(exc)
