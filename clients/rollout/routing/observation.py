# SPDX-License-Identifier: Apache-2.0
"""The observation of a request by its client, and the outcome that follows from it."""

import time
from collections.abc import Callable

from clients.latency import Arrival, MetricUndefined, RequestRecord, e2e_ms, tpot_ms, ttft_ms
from clients.streaming import GenerateChunk
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.repetition import ends_in_repetition


class Observation:
    """The observation of one request, from its construction on.

    Args:
        arm, stratum, unit: fields of the `Outcome`.
    """

    def __init__(self, arm: str, stratum: int, unit: str = "") -> None:
        self._arm = arm
        self._stratum = stratum
        self._unit = unit
        self._sent_ns = time.monotonic_ns()
        self._chunks: list[GenerateChunk] = []

    @property
    def has_begun(self) -> bool:
        """Return whether any text has come."""
        return any(chunk.text for chunk in self._chunks)

    @property
    def text(self) -> str:
        """Return the text of all chunks."""
        return "".join(chunk.text for chunk in self._chunks)

    def add(self, chunk: GenerateChunk) -> None:
        """Record a chunk."""
        self._chunks.append(chunk)

    def outcome(self, *, error: str = "", agreement: float | None = None) -> Outcome:
        """Return the outcome of a request that has ended."""
        arrivals = tuple(
            Arrival(received_ns=chunk.received_ns, num_tokens=chunk.num_output_tokens or 0) for chunk in self._chunks
        )
        record = RequestRecord(sent_ns=self._sent_ns, arrivals=arrivals)
        text = self.text
        reasons = [chunk.finish_reason for chunk in self._chunks if chunk.finish_reason]
        return Outcome(
            arm=self._arm,
            stratum=self._stratum,
            ttft_ms=_defined(ttft_ms, record),
            tpot_ms=None if error else _defined(tpot_ms, record),
            e2e_ms=None if error else _defined(e2e_ms, record),
            num_tokens=record.output_tokens,
            finish_reason="" if error or not reasons else reasons[-1],
            error=error,
            is_empty=not error and not text,
            is_looping=ends_in_repetition(text),
            unit=self._unit,
            agreement=agreement,
        )


def _defined(metric: Callable[[RequestRecord], float], record: RequestRecord) -> float | None:
    try:
        return metric(record)
    except MetricUndefined:
        return None
