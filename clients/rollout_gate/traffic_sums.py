# SPDX-License-Identifier: Apache-2.0
"""The sums of all metrics over the requests of one split of the traffic; one rollout's, or thousands side by side."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS, effect_of
from clients.rollout_gate.statistics.mean_test import Floats
from clients.rollout_gate.statistics.rows import Rows
from clients.rollout_gate.sums.event_sums import EventSums
from clients.rollout_gate.sums.mean_sums import Figures, MeanSums
from clients.rollout_gate.sums.slow import SlowLimit


@dataclass(frozen=True)
class Portion:
    """The requests that came together; arrays [..., requests].

    Attributes:
        values: by metric; nan: the request says nothing about it.
        work: by metric that has any, [..., requests, features].
        groups: [..., requests, kinds] (`clients.rollout_gate.statistics.groups`).
        at_s: time of each request's end.
    """

    values: Mapping[str, Floats]
    work: Mapping[str, Floats]
    is_candidate: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    unit: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    groups: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    at_s: Floats

    def rows(self, name: str) -> Rows:
        """Return the rows of one metric."""
        value = self.values[name]
        work = self.work.get(name)
        work = np.zeros((*value.shape, 0)) if work is None else work
        return Rows(value, work, self.is_candidate, self.unit, self.groups)


class TrafficSums:
    """The sums of every metric of traffic.

    Args:
        spec: settings.
        shape: leading dimensions.
    """

    def __init__(self, spec: GateSpec, shape: tuple[int, ...] = ()) -> None:
        self.limits = {
            name: SlowLimit(shape, float(getattr(spec, f"{name}_factor")))
            for name, metric in METRICS.items()
            if metric.far_over
        }
        self.means = {
            name: MeanSums(
                shape,
                metric.num_features,
                effect=effect_of(name, spec),
                effect_of_group=effect_of(f"{name}_of_some", spec) if f"{name}_of_some" in METRICS else None,
                bound=metric.bound,
            )
            for name, metric in METRICS.items()
            if metric.kind == "log_mean"
        }
        self.events = {
            name: EventSums(shape, spec.fade_s, is_of_queue=metric.is_of_queue)
            for name, metric in METRICS.items()
            if metric.kind == "share"
        }

    def add(self, portion: Portion) -> None:
        """Add requests to the open block."""
        newest_s = portion.at_s.max() if portion.at_s.size else 0.0
        for name, sums in self.means.items():
            figures = sums.add(portion.rows(name))
            if figures is not None:
                self._count_slow(name, figures, portion.at_s, newest_s)
        for name, events in self.events.items():
            if name in portion.values:
                events.add(portion.rows(name), portion.values[name], portion.at_s)

    def _count_slow(self, of: str, figures: Figures, at_s: Floats, newest_s: float) -> None:
        """Count the requests far over their like in a mean, for the metric of those, if there is one."""
        over = figures.over
        # The first ones have waited for one another: they count as if they had come now.
        times = at_s if over.shape == at_s.shape else np.full(over.shape, newest_s)
        for name, limit in self.limits.items():
            if METRICS[name].far_over == of:
                self.events[name].add(figures.rows, limit.are_slow(figures.rows, over), times)

    def close(self) -> None:
        """Close the open block of every metric."""
        for mean in self.means.values():
            mean.close()
        for events in self.events.values():
            events.close()
