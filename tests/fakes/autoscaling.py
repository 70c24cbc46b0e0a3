# SPDX-License-Identifier: Apache-2.0
"""The replicas that KEDA and Kubernetes make of Prometheus' answers, without their windows of time.

Sources: KEDA 8b4f083ca (2026-08-20), pkg/scalers/prometheus_scaler.go (ExecutePromQuery) and pkg/fallback/fallback.go;
kubernetes pkg/controller/podautoscaler/replica_calculator.go (GetExternalPerPodMetricReplicas), horizontal.go
(computeReplicasForMetrics) and metrics/client.go (GetExternalMetric: no item is an error).
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

TOLERANCE = 0.1  # kube-controller-manager's default


class NoMetric(Exception):
    """A metric without a value, which its source reports."""


def keda_value(samples: Sequence[float], *, ignore_null_values: bool) -> float:
    """Return the value of a prometheus trigger.

    Raises:
        NoMetric: there is not one finite sample.
    """
    if len(samples) == 1 and math.isfinite(samples[0]):
        return samples[0]
    if len(samples) > 1 or not ignore_null_values:
        raise NoMetric(f"{len(samples)} samples: {list(samples)}")
    return 0.0


def external_value(samples: Sequence[float]) -> float:
    """Return the value of prometheus-adapter, added up by Kubernetes, which has no notion of NaN.

    Raises:
        NoMetric: there is no sample.
    """
    if not samples:
        raise NoMetric("no metrics returned from external metrics API")
    return sum(samples)


def wanted(value: float, target: float, *, current: int) -> int:
    """Return the replicas for one metric with an AverageValue. Both are made thousandths on the way."""
    value_milli, target_milli = int(value * 1000), round(target * 1000)
    if abs(1 - value_milli / (target_milli * current)) <= TOLERANCE:
        return current
    return math.ceil(value_milli / target_milli)


def replicas(proposals: Sequence[int | None], bounds: tuple[int, int], *, current: int) -> int:
    """Return the replicas for several metrics.

    Args:
        proposals: of each metric; None: it had no value.
        bounds: the least and the most.
        current: the number of replicas now.
    """
    known = [proposal for proposal in proposals if proposal is not None]
    if not known or (len(known) < len(proposals) and max(known) < current):
        return current
    return min(bounds[1], max(bounds[0], *known))


def keda_replicas(
    spec: Mapping[str, Any], answers: Mapping[str, Sequence[float]], *, current: int, num_failures: int = 0
) -> int:
    """Return the replicas of a ScaledObject.

    Args:
        spec: its spec.
        answers: samples that its queries have, by the trigger's name; of cron the number of replicas.
        current: the number of replicas now.
        num_failures: of a query without an answer, this one included.
    """
    fallback = spec["fallback"]
    assert fallback["behavior"] == "currentReplicasIfHigher"
    proposals: list[int | None] = []
    for trigger in spec["triggers"]:
        samples = answers[trigger["name"]]
        if trigger["type"] == "cron":
            proposals.append(int(samples[0]))
            continue
        target = float(trigger["metadata"]["threshold"])
        ignores = trigger["metadata"].get("ignoreNullValues", "true") == "true"
        try:
            value = keda_value(samples, ignore_null_values=ignores)
        except NoMetric:
            if num_failures <= fallback["failureThreshold"]:
                proposals.append(None)
                continue
            value = target * max(current, fallback["replicas"])
        proposals.append(wanted(value, target, current=current))
    return replicas(proposals, (spec["minReplicaCount"], spec["maxReplicaCount"]), current=current)


def hpa_replicas(spec: Mapping[str, Any], answers: Mapping[str, Sequence[float]], *, current: int) -> int:
    """Return the replicas of a HorizontalPodAutoscaler.

    Args:
        spec: its spec.
        answers: samples, by the metric's name.
        current: the number of replicas now.
    """
    proposals: list[int | None] = []
    for metric in spec["metrics"]:
        target = int(metric["external"]["target"]["averageValue"].removesuffix("m")) / 1000
        try:
            value = external_value(answers[metric["external"]["metric"]["name"]])
        except NoMetric:
            proposals.append(None)
        else:
            proposals.append(wanted(value, target, current=current))
    return replicas(proposals, (spec["minReplicas"], spec["maxReplicas"]), current=current)
