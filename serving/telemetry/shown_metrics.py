# SPDX-License-Identifier: Apache-2.0
"""The gauges and counters of one model version, made with their first values and told only what has changed.

Counters live as long as the model's adapter. An engine's process counts from 0 again when it is started again; the
values that it reported last stay counted.
"""

from collections.abc import Mapping
from typing import Any

_NO_LABELS: Mapping[str, str] = {}


class ShownMetrics:
    """The metrics of one model version, each by the name of its family and its own labels.

    Args:
        metric_family: `pb_utils.MetricFamily`.
        labels: labels of every metric.
        gauges: descriptions by name.
        counters: descriptions by name.
    """

    def __init__(
        self, metric_family: Any, labels: Mapping[str, str], *, gauges: Mapping[str, str], counters: Mapping[str, str]
    ) -> None:
        self._labels = dict(labels)
        self._gauges = frozenset(gauges)
        # Triton drops a family or a metric that nobody holds.
        self._families = {name: metric_family(name, text, metric_family.GAUGE) for name, text in gauges.items()} | {
            name: metric_family(name, text, metric_family.COUNTER) for name, text in counters.items()
        }
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._shown: dict[tuple[str, ...], float] = {}

    def make(self, name: str, labels: Mapping[str, str] = _NO_LABELS) -> Any:
        """Return a metric; a new one is 0."""
        key = (name, *labels.values())
        if key not in self._metrics:
            self._metrics[key] = self._families[name].Metric(labels={**self._labels, **labels})
        return self._metrics[key]

    def set(self, name: str, value: float | None, labels: Mapping[str, str] = _NO_LABELS) -> bool:
        """Set a gauge, and return whether it has changed; None: 0 if there is such a gauge, as the engine has died."""
        key = (name, *labels.values())
        if value is None and key in self._shown:
            value = 0
        if value is None or self._shown.get(key) == value:
            return False
        self.make(name, labels).set(value)
        self._shown[key] = value
        return True

    def count(self, name: str, total: float, labels: Mapping[str, str] = _NO_LABELS) -> None:
        """Add to a counter what has been counted since the last call; `total` is the count of the engine's life."""
        key = (name, *labels.values())
        counter, shown = self.make(name, labels), self._shown.get(key, 0)
        if total != shown:
            counter.increment(total - shown if total > shown else total)
            self._shown[key] = total

    def reset(self, *names: str) -> None:
        """Set gauges to 0 and keep counters: the engine has died, and the next engine counts from 0."""
        for key, value in self._shown.items():
            if value and key[0] in names:
                self._shown[key] = 0
                if key[0] in self._gauges:
                    self._metrics[key].set(0)
