# SPDX-License-Identifier: Apache-2.0
"""A histogram made of counters, for what is observed with every token.

Triton's own histogram takes one value in a message to the server and back: a sixth of what a token costs. Counters take
sums, a few messages for all tokens of a moment. The series have a histogram's names and labels, so queries are the
same. The frontend of HTTP shows the three families as the one that they are (`serving.frontend.http.histograms`).
"""

import bisect
import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

_LATE_S = 1.0  # for what is observed, where it is less than one value for each series


class CountedHistogram:
    """The histogram of one model version.

    Args:
        metric_family: `pb_utils.MetricFamily`.
        name: name of the histogram.
        text: its help.
        buckets: upper bounds, ascending, without infinity.
        labels: of every series.
    """

    def __init__(
        self, metric_family: Any, name: str, text: str, *, buckets: Sequence[float], labels: Mapping[str, str]
    ) -> None:
        self._bounds = list(buckets)
        self._observed: deque[float] = deque()
        self._flushed_s = float("-inf")
        families = [metric_family(f"{name}_{part}", text, metric_family.COUNTER) for part in ("bucket", "sum", "count")]
        self.families = tuple(families)  # Triton drops a family that nobody holds
        bounds = [*(f"{bound:g}" for bound in buckets), "+Inf"]
        self._buckets = [families[0].Metric(labels={**labels, "le": bound}) for bound in bounds]
        self._sum, self._count = (family.Metric(labels=dict(labels)) for family in families[1:])

    def observe(self, value: float) -> None:
        """Keep a value for the next `flush`; for any thread."""
        self._observed.append(value)

    def flush(self) -> None:
        """Send what was observed to the server, or a little later where that is little; for one thread at a time."""
        now_s, num_values = time.monotonic(), len(self._observed)
        if not num_values or (num_values < len(self._buckets) and now_s - self._flushed_s < _LATE_S):
            return
        self._flushed_s = now_s
        values = [self._observed.popleft() for _ in range(num_values)]
        counts = [0] * len(self._buckets)
        for value in values:
            counts[bisect.bisect_left(self._bounds, value)] += 1
        for bucket, count in zip(self._buckets, itertools.accumulate(counts), strict=True):
            if count:
                bucket.increment(count)
        self._sum.increment(sum(values))
        self._count.increment(len(values))
