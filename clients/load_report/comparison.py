# SPDX-License-Identifier: Apache-2.0
"""The comparison of two runs, as ratios with their intervals: above 1 is more, whether that is good or bad."""

from collections.abc import Sequence

import msgspec

from clients.load_report.latency_percentiles import MIN_REQUESTS, NAMES, Interval, interval_of, with_draws
from clients.load_report.run_figures import LATENCIES, RunFigures, values_of
from clients.load_run.run_folder import Run
from trireme.base.sample_statistics import Floats

_SHOWN = ("50", "99")


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The ratio of a run's figure to the first run's.

    Attributes:
        interval: None: too few requests for one.
    """

    figure: str
    value: float
    interval: Interval | None

    @property
    def is_different(self) -> bool:
        """Return whether 1 lies outside the interval."""
        return self.interval is not None and not self.interval.low <= 1 <= self.interval.high


def compare(run: Run, figures: RunFigures, base: Run, base_figures: RunFigures) -> list[Ratio]:
    """Return the ratios of throughput and latencies of `run` to those of `base`, each over its own window."""
    ratios = [
        Ratio(figure=name, value=one.per_s / other.per_s, interval=_of_rates(one.interval, other.interval))
        for name, one, other in (
            ("requests/s", figures.requests, base_figures.requests),
            ("output tokens/s", figures.output_tokens, base_figures.output_tokens),
        )
        if other.per_s
    ]
    for name, metric in LATENCIES.items():
        over, under = (
            values_of([r for r in each.records if r.is_done and of.window.holds(r.due_ns)], metric)
            for each, of in ((run, figures), (base, base_figures))
        )
        if over and under:
            ratios += _of_latencies(name, over, under)
    return ratios


def _of_latencies(name: str, over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> list[Ratio]:
    (values, drawn), (base, drawn_base) = (with_draws(each, seed=seed) for seed, each in enumerate((over, under)))
    is_enough = min(len(over), len(under)) >= MIN_REQUESTS
    return [
        Ratio(
            figure=f"{name.upper()} p{percentile}",
            value=float(values[column] / base[column]),
            interval=_of_draws(drawn[:, column], drawn_base[:, column]) if is_enough else None,
        )
        for percentile in _SHOWN
        for column in [NAMES.index(percentile)]
        if base[column]  # chunks that came in one TCP segment have one stamp: half of the gaps may be 0
    ]


def _of_draws(over: Floats, under: Floats) -> Interval | None:
    return interval_of(over / under) if under.all() else None


def _of_rates(one: Interval | None, other: Interval | None) -> Interval | None:
    """Return the interval of a ratio by both ends at once: wider than needed, for the two are independent."""
    if one is None or other is None or not other.low:
        return None
    return Interval(one.low / other.high, one.high / other.low)
