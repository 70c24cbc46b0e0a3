# SPDX-License-Identifier: Apache-2.0
"""KV cache from one engine of vLLM to another: a request that prefills alone, and the request that goes on elsewhere.

vLLM's NixlConnector moves the blocks: the engine that goes on reads them from the other's memory. What it needs to know
travels with the request, in `context_phase_params`.
Source: vllm 0.32.0, `vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`.
"""

import hashlib
import socket
from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from ensemble_configs.spec.engine.kv_transfer_spec import KvTransferSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.seam.base import GenerationRequest
from serving.engines.vllm.vllm_upstream import PrefillStats, SchedulerStats, Upstream
from trireme.base.errors import RequestError, SpecError
from trireme.base.free_ports import free_ports
from trireme.base.known_types import known

_FIELD = "context_phase_params"
_PARAMS = "kv_transfer_params"  # in the extra arguments of vLLM's sampling parameters, and in the last output
_CACHED = "remote_prefill_cached_tokens"
_ROLES = {"both": "kv_both", "prefill": "kv_producer", "decode": "kv_consumer"}
_MOST_ENDED = 64  # transfers of requests that were cancelled meanwhile
POLL_S = 0.001  # an engine that only waits for blocks to come or go leaves its core to others for so long


class _Blocks(msgspec.Struct, frozen=True):
    """The fields of vLLM's dictionary that would end a step, or the engine, if they were of another type."""

    do_remote_prefill: bool
    remote_block_ids: list[list[int]]
    remote_engine_id: str
    remote_request_id: str
    remote_host: str
    remote_port: Annotated[int, msgspec.Meta(ge=1, le=65535)]
    tp_size: Annotated[int, msgspec.Meta(ge=1)]
    remote_num_tokens: Annotated[int, msgspec.Meta(ge=1)]


class _HandedOver(msgspec.Struct, frozen=True, array_like=True):
    """The bytes that travel: which prompt was computed, and vLLM's dictionary for the engine that goes on."""

    digest: bytes
    params: dict[str, Any]


_decoder = msgspec.msgpack.Decoder(known(_HandedOver))


def transfer_arguments(spec: VllmEngineSpec, upstream: Upstream) -> dict[str, Any]:
    """Return the keywords of EngineArgs."""
    if spec.kv_transfer is None:
        return {}
    if spec.is_on_cpu:
        upstream.transfer_in_steps()
    config = upstream.make_kv_transfer_config(
        kv_connector="NixlConnector",
        kv_role=_ROLES[spec.kv_transfer.role],
        kv_connector_extra_config={"kv_lease_duration": spec.kv_transfer.lease_s},
        # A prompt whose blocks are lost on the way is computed here, and nobody notices but by the time.
        kv_load_failure_policy="recompute",
    )
    return {"kv_transfer_config": config}


def transfer_settings(spec: KvTransferSpec | None) -> dict[str, str]:
    """Return the environment variables that vLLM's connector reads when the engine's process begins.

    Raises:
        SpecError: the machine's own name has no address.
    """
    if spec is None:
        return {}
    name = socket.gethostname()
    try:
        host = spec.host or socket.gethostbyname(name)
    except OSError as exc:
        raise SpecError(
            f"engine.kv_transfer.host is not named, and this machine's own name, {name}, has no address ({exc}); set "
            "it to the address at which other engines reach this machine",
            field="engine.kv_transfer.host",
        ) from exc
    port = spec.port or free_ports(1)[0]
    return {"VLLM_NIXL_SIDE_CHANNEL_HOST": host, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}


def prefill_params(upstream: Upstream) -> Any:
    """Return vLLM's sampling parameters of a request that prefills alone.

    Its one token is thrown away: the engine that goes on computes the prompt's last position again, and samples there.
    A request that ended by a token and not by its length would keep no blocks for the other engine.
    """
    return upstream.make_sampling_params(
        temperature=0.0,
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        extra_args={_PARAMS: {"do_remote_decode": True}},
    )


def pack(request: GenerationRequest, params: dict[str, Any]) -> bytes:
    """Return the answer to a request that prefilled, in bytes, for the request that goes on."""
    return msgspec.msgpack.encode(_HandedOver(_digest(request), params))


def extra_arguments(request: GenerationRequest) -> dict[str, Any]:
    """Return the extra arguments of vLLM's sampling parameters for a request that goes on.

    Raises:
        RequestError: `context_phase_params` is not what a context-only request was answered, or is of another prompt.
    """
    try:
        handed = _decoder.decode(request.sampling.context_phase_params or b"")
        msgspec.convert(handed.params, known(_Blocks))
    except msgspec.MsgspecError as exc:
        raise RequestError(
            f"{_FIELD} is not what a context-only request of vLLM was answered; send that answer's bytes, once",
            field=_FIELD,
        ) from exc
    if handed.digest != _digest(request):
        raise RequestError(
            f"{_FIELD} is of another prompt or adapter; send that of this request, or leave it out", field=_FIELD
        )
    return {_PARAMS: handed.params}


class TransferTimes:
    """The times of transfers that have ended, for the requests that they were for.

    vLLM tells them by step and in no order of requests, so that of requests whose blocks came together one may be told
    another's time; their sum is right.
    """

    def __init__(self) -> None:
        self._ended_ms: deque[float] = deque(maxlen=_MOST_ENDED)

    def note(self, stats: SchedulerStats | None) -> None:
        """Take the times of a step."""
        if stats is not None and stats.kv_connector_stats:
            self._ended_ms.extend(1000 * seconds for seconds in stats.kv_connector_stats["transfer_duration"])

    def next_ms(self) -> float | None:
        """Return the time of a transfer, in milliseconds, once; None: there was none."""
        return self._ended_ms.popleft() if self._ended_ms else None


def cached_tokens(stats: PrefillStats, params: Mapping[str, Any] | None) -> int:
    """Return how many tokens of a prompt no engine has computed for this request.

    Args:
        stats: of the engine that goes on, to which all that came from the other engine counts as cached.
        params: vLLM's dictionary, with what the other engine found in its cache; None: there was no other engine.
    """
    if params is None or not stats.num_external_cached_tokens:
        return stats.num_cached_tokens
    return max(stats.num_local_cached_tokens, params.get(_CACHED) or 0)


def _digest(request: GenerationRequest) -> bytes:
    """Return a digest of all that a prompt's KV cache depends on, beside the model."""
    sampling = request.sampling
    computed = (request.input_ids, sampling.lora_name, sampling.lora_task_id)
    return hashlib.sha256(msgspec.msgpack.encode(computed)).digest()
