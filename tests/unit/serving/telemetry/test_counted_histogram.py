# SPDX-License-Identifier: Apache-2.0
"""A histogram of counters has the numbers of a histogram, and costs few messages whatever it observes."""

import random

import pytest
import triton_python_backend_utils as pb_utils
from manual_clock import ManualClock

from serving.telemetry import counted_histogram
from serving.telemetry.counted_histogram import CountedHistogram


def histogram() -> CountedHistogram:
    return CountedHistogram(pb_utils.MetricFamily, "x_seconds", "X", buckets=(0.25, 0.5, 10), labels={"model": "m"})


def shown(found: CountedHistogram) -> dict[str, float]:
    families: tuple[pb_utils.MetricFamily, ...] = found.families
    assert {family.kind for family in families} == {pb_utils.MetricFamily.COUNTER}
    assert {metric.labels["model"] for family in families for metric in family.metrics} == {"m"}
    return {
        family.name.removeprefix("x_seconds_") + metric.labels.get("le", ""): metric.value()
        for family in families
        for metric in family.metrics
    }


def test_nothing_is_observed_at_first() -> None:
    found = histogram()
    found.flush()
    assert shown(found) == {"bucket0.25": 0, "bucket0.5": 0, "bucket10": 0, "bucket+Inf": 0, "sum": 0, "count": 0}


def test_each_bucket_counts_what_is_not_above_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(counted_histogram, "time", clock)
    found = histogram()
    for value in (0.25, 0.3, 11):
        found.observe(value)
    found.flush()
    found.observe(0.5)
    found.flush()
    assert shown(found)["count"] == 3  # one value is not worth a message for each series
    clock.now_s += 1
    found.flush()
    assert shown(found) == {
        "bucket0.25": 1, "bucket0.5": 3, "bucket10": 3, "bucket+Inf": 4, "sum": 12.05, "count": 4,
    }  # fmt: skip


def test_it_agrees_with_a_histogram_and_takes_a_message_for_each_series_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, values = histogram(), [random.Random(1).expovariate(1.0) for _ in range(5_000)]
    calls = list[float]()
    increment = pb_utils.Metric.increment

    def counted(self: pb_utils.Metric, value: float) -> None:
        calls.append(value)
        increment(self, value)

    monkeypatch.setattr(pb_utils.Metric, "increment", counted)
    for value in values:
        found.observe(value)
    found.flush()
    assert len(calls) == 6
    numbers = shown(found)
    for bound in ("0.25", "0.5", "10", "+Inf"):
        assert numbers[f"bucket{bound}"] == sum(value <= float(bound) for value in values)
    assert numbers["count"] == 5_000
    assert numbers["sum"] == sum(values)
