# SPDX-License-Identifier: Apache-2.0
"""The latency words of every report, from when a request was sent and its chunks came; percentiles are the report's."""

from collections.abc import Iterable
from itertools import pairwise

import msgspec

_NS_PER_MS = 1e6


class MetricUndefined(ValueError):
    """The request has too few tokens for this metric; leave it out of the pool, do not count it as 0."""


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A chunk of a response."""

    received_ns: int  # monotonic clock, as `RequestRecord.sent_ns`
    num_tokens: int  # 0: text that was held back, a sign of life, or the end


class RequestRecord(msgspec.Struct, frozen=True):
    """A request that ended well."""

    sent_ns: int
    arrivals: tuple[Arrival, ...]

    @property
    def output_tokens(self) -> int:
        """Return the tokens in all chunks."""
        return sum(arrival.num_tokens for arrival in self.arrivals)


def ttft_ms(record: RequestRecord) -> float:
    """Return the time to first token: the first chunk with a token minus send, in milliseconds.

    Raises:
        MetricUndefined: no token came.
    """
    return (_first_of(_token_times_ns(record)) - record.sent_ns) / _NS_PER_MS


def e2e_ms(record: RequestRecord) -> float:
    """End to end: the last chunk minus send, in milliseconds.

    Raises:
        MetricUndefined: no chunk came.
    """
    return (_first_of(arrival.received_ns for arrival in reversed(record.arrivals)) - record.sent_ns) / _NS_PER_MS


def itl_ms(record: RequestRecord) -> list[float]:
    """Return the inter-token latencies: the gap before every chunk with tokens after the first, in milliseconds.

    Pooled over requests before a percentile is taken. Chunks, not tokens: a chunk of four tokens is one gap.
    Empty below two chunks with tokens.
    """
    times_ns = _token_times_ns(record)
    return [(later - earlier) / _NS_PER_MS for earlier, later in pairwise(times_ns)]


def tpot_ms(record: RequestRecord) -> float:
    """Return the mean time per output token after the first, in milliseconds.

    (e2e_ms - ttft_ms) / (output_tokens - 1)

    Raises:
        MetricUndefined: fewer than two output tokens.
    Source: vLLM benchmarks/serve.py, calculate_metrics.
    """
    output_tokens = record.output_tokens
    if output_tokens < 2:
        raise MetricUndefined(f"tpot_ms needs 2 output tokens, the request has {output_tokens}")
    return (e2e_ms(record) - ttft_ms(record)) / (output_tokens - 1)


def _token_times_ns(record: RequestRecord) -> list[int]:
    return [arrival.received_ns for arrival in record.arrivals if arrival.num_tokens]


def _first_of(times_ns: Iterable[int]) -> int:
    for time_ns in times_ns:
        return time_ns
    raise MetricUndefined("the request has no chunk to measure")
