# SPDX-License-Identifier: Apache-2.0
"""The rates of the measured part of a run, per second, with their intervals.

A request that takes long has its tokens in neighbouring stretches of a run, so these are alike, and an interval that
takes them for independent is too narrow. Stretches are therefore twice as long as a request, so that few are in two.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from clients.load_report.latency_percentiles import CONFIDENCE, MIN_REQUESTS, NUM_BLOCKS, Interval
from clients.load_report.steady_state import Window
from clients.load_run.load_record import LoadRecord

_REQUESTS_LONG = 2.0  # a stretch; of one as long as a request a 95 % interval held the truth in 84 % of runs (2/s, 5 s)
_MIN_STRETCHES = 5


class Rate(msgspec.Struct, frozen=True):
    """The number of requests or tokens a second over the window.

    Attributes:
        interval: None: too few requests, or too short a window for their length.
    """

    per_s: float
    interval: Interval | None


def rate_of(counts: Sequence[tuple[int, float | None]], window: Window, done: Sequence[LoadRecord]) -> Rate:
    """Return the rate over a window.

    Args:
        counts: time in ns and number of each event; None counts as 0.
        window: the measured part of the run.
        done: requests of the window that ended well.
    """
    within = [(at_ns, count or 0) for at_ns, count in counts if window.holds(at_ns)]
    per_s = sum(count for _, count in within) / window.seconds
    num_stretches = _num_stretches(window, done)
    if not num_stretches:
        return Rate(per_s, None)
    # Student's t; scipy.stats.t.ppf is this function, and half a second more to import.
    from scipy.special import stdtrit  # noqa: PLC0415  a seventh of a second, and most commands have no rate

    edges = np.linspace(window.start_ns, window.end_ns, num_stretches + 1)
    totals, _ = np.histogram([at for at, _ in within], bins=edges, weights=[count for _, count in within])
    of_stretches = totals / (window.seconds / num_stretches)
    error = float(of_stretches.std(ddof=1)) / num_stretches**0.5
    margin = float(stdtrit(num_stretches - 1, (1 + CONFIDENCE) / 2)) * error
    return Rate(per_s, Interval(max(0.0, per_s - margin), per_s + margin))


def _num_stretches(window: Window, done: Sequence[LoadRecord]) -> int:
    """Return the number of stretches that the window is cut into; 0: there is no interval."""
    if len(done) < MIN_REQUESTS:
        return 0
    lasting_s = float(np.mean([record.end_ns - record.due_ns for record in done])) / 1e9
    count = min(NUM_BLOCKS, int(window.seconds / max(1e-9, _REQUESTS_LONG * lasting_s)))
    return count if count >= _MIN_STRETCHES else 0
