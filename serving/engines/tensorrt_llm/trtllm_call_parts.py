# SPDX-License-Identifier: Apache-2.0
"""The arguments of `generate_async` beside sampling parameters: KV retention and phases of disaggregated serving."""

from datetime import timedelta

import msgspec

from serving.engines.seam.base import SamplingParams
from serving.engines.seam.kv_retention import retained_ranges
from serving.engines.tensorrt_llm.trtllm_upstream import Disaggregated, Upstream
from trireme.base.errors import RequestError
from trireme.base.known_types import known

_FIELD = "context_phase_params"


class _ContextPhase(msgspec.Struct, frozen=True, array_like=True):
    """The bytes that the prefill's server hands over: the parts of upstream's DisaggregatedParams that travel."""

    first_gen_tokens: list[int] | None
    ctx_request_id: int | None
    opaque_state: bytes | None
    draft_tokens: list[int] | None


_decoder = msgspec.msgpack.Decoder(known(_ContextPhase))


def comes_at_once(sampling: SamplingParams) -> bool:
    """Return whether a request's output comes whole: with beams, known at their end, or logits of the whole output."""
    return sampling.beam_width > 1 or sampling.return_context_logits or sampling.return_generation_logits


def call_parts(sampling: SamplingParams, upstream: Upstream) -> dict[str, object]:
    """Return the arguments of the call; none where nothing was asked for.

    Raises:
        RequestError: `context_phase_params` is not what a context-only request was answered.
    """
    parts: dict[str, object] = {}
    ranges = [
        upstream.make_retention_range(
            token_start=one.start, token_end=one.end, priority=one.priority, duration_ms=_duration(one.duration_ms)
        )
        for one in retained_ranges(sampling)
    ]
    if ranges or sampling.retention_decode_priority is not None:
        decode: dict[str, object] = {"decode_duration_ms": _duration(sampling.retention_decode_duration_ms)}
        if sampling.retention_decode_priority is not None:
            decode["decode_retention_priority"] = sampling.retention_decode_priority
        parts["kv_cache_retention_config"] = upstream.make_retention_config(
            token_range_retention_configs=ranges, **decode
        )
    if sampling.is_context_only:
        parts["disaggregated_params"] = upstream.make_disaggregated_params(request_type="context_only")
    elif sampling.context_phase_params is not None:
        phase = msgspec.structs.asdict(_unpacked(sampling.context_phase_params))
        parts["disaggregated_params"] = upstream.make_disaggregated_params(request_type="generation_only", **phase)
    return parts


def context_phase_of(params: Disaggregated) -> bytes:
    """Return the answer to a context-only request in bytes, for the request that goes on."""
    phase = _ContextPhase(params.first_gen_tokens, params.ctx_request_id, params.opaque_state, params.draft_tokens)
    return msgspec.msgpack.encode(phase)


def _unpacked(packed: bytes) -> _ContextPhase:
    try:
        return _decoder.decode(packed)
    except msgspec.DecodeError as exc:
        raise RequestError(f"{_FIELD} is not what a context-only request was answered", field=_FIELD) from exc


def _duration(duration_ms: int | None) -> timedelta | None:
    return None if duration_ms is None or duration_ms == -1 else timedelta(milliseconds=duration_ms)
