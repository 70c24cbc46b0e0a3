# SPDX-License-Identifier: Apache-2.0
"""The place of a request in a trace, with the sampling decision: W3C trace context, read from the request.

Source: W3C Trace Context, https://www.w3.org/TR/trace-context/ (version 00).
"""

import re
import secrets

import msgspec

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1
_RATIO_BITS = 64
_MAX_STATE_CHARS = 512


class TraceContext(msgspec.Struct, frozen=True):
    """A trace, and the span in it that is the parent of the next span."""

    trace_id: int  # 128 bits, never 0
    span_id: int  # 64 bits, never 0
    is_sampled: bool
    state: str = ""  # other vendors', handed on as it came

    @property
    def traceparent(self) -> str:
        """Return the value of the `traceparent` header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"

    def child(self) -> "TraceContext":
        """Return a new span below this span, with its sampling decision."""
        return msgspec.structs.replace(self, span_id=_new_id(_RATIO_BITS))


def read_context(traceparent: object, state: object = "") -> TraceContext | None:
    """Return the caller's trace context; None where it is missing or unreadable: by W3C's rules a new trace begins."""
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    kept = state if isinstance(state, str) and len(state) <= _MAX_STATE_CHARS else ""
    return TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED), kept)


def new_trace(sample_ratio: float) -> TraceContext:
    """Return a new trace, for a request that came without a trace context.

    The lower half of the trace id decides the sampling, so all services with an equal ratio make an equal decision.
    """
    trace_id = _new_id(128)
    is_sampled = trace_id % (1 << _RATIO_BITS) < round(sample_ratio * (1 << _RATIO_BITS))
    return TraceContext(trace_id, _new_id(_RATIO_BITS), is_sampled)


def _new_id(num_bits: int) -> int:
    return secrets.randbits(num_bits) or 1
