# SPDX-License-Identifier: Apache-2.0
"""Targets of latency: for each request, which makes goodput, and for percentiles, which makes capacity."""

import re
from collections.abc import Callable

import msgspec

from clients.latency import MetricUndefined, e2e_ms, tpot_ms, ttft_ms
from clients.load_run.load_record import LoadRecord
from trireme.base.errors import RequestError

METRICS: dict[str, Callable[..., float]] = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TARGET = re.compile(rf"(?P<metric>[a-z0-9]+)(?:_p(?P<percentile>{_NUMBER}))?=(?P<limit>{_NUMBER})(?P<unit>ms|s)?")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A target of latency, in milliseconds at most, for every request or for a percentile of requests."""

    metric: str
    limit_ms: float
    percentile: float | None = None

    @property
    def name(self) -> str:
        """Return the target's name as it is written: ``ttft_p99``."""
        return self.metric if self.percentile is None else f"{self.metric}_p{self.percentile:g}"


def parse_targets(text: str, *, of_percentiles: bool) -> tuple[Target, ...]:
    """Return the targets in a text such as ``ttft=500,tpot=50`` or ``ttft_p99=500,tpot_p99=50``.

    Limits are in ms; ``0.5s`` is possible.

    Raises:
        RequestError: it is not written so, or names another metric.
    """
    example = "ttft_p99=500,tpot_p99=50" if of_percentiles else "ttft=500,tpot=50"
    targets = []
    for part in text.replace(" ", "").split(","):
        found = _TARGET.fullmatch(part)
        wrong = None
        if found is None:
            wrong = f"{part!r} is not METRIC=MILLISECONDS"
        elif found["metric"] not in METRICS:
            wrong = f"{found['metric']!r} is none of {', '.join(METRICS)}"
        elif (found["percentile"] is not None) != of_percentiles:
            wrong = f"{part!r} {'needs a percentile' if of_percentiles else 'is meant for each request'}"
        if wrong is not None or found is None:
            raise RequestError(f"slo: {wrong}; write it like {example}", field="slo", value=text)
        limit_ms = float(found["limit"]) * (1000 if found["unit"] == "s" else 1)
        percentile = float(found["percentile"]) if found["percentile"] else None
        if not limit_ms > 0 or not (percentile is None or 0 < percentile < 100):
            raise RequestError(f"slo: {part!r} is out of range; write it like {example}", field="slo", value=text)
        targets.append(Target(metric=found["metric"], limit_ms=limit_ms, percentile=percentile))
    return tuple(targets)


def is_met(record: LoadRecord, targets: tuple[Target, ...]) -> bool:
    """Return whether a request ended well and within every target; a latency that it does not have misses none."""
    return record.is_done and all(_value_ms(record, target.metric) <= target.limit_ms for target in targets)


def _value_ms(record: LoadRecord, metric: str) -> float:
    try:
        return METRICS[metric](record.latencies())
    except MetricUndefined:
        return 0.0
