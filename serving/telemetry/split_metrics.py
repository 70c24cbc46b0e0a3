# SPDX-License-Identifier: Apache-2.0
"""The Prometheus counters of a split: which release got how many requests, and what was handed back to the stable one.

An increment is a message to the server, so they go in bunches, as those of `request_metrics`.
"""

import threading
from collections import Counter
from typing import Any

_FLUSH_S = 0.25
_REQUESTS, _FALLBACKS = "trireme_split_requests_total", "trireme_split_fallbacks_total"
FAMILIES = {
    _REQUESTS: "Requests that a split gave a release, by arm",
    _FALLBACKS: "Requests that a split gave a release and the stable one answered, by reason",
}


class SplitMetrics:
    """The counters of one model that splits requests.

    Args:
        metric_family: `pb_utils.MetricFamily`.
        model, version: the model, for the labels.
    """

    def __init__(self, metric_family: Any, *, model: str, version: str) -> None:
        self._families = {name: metric_family(name, text, metric_family.COUNTER) for name, text in FAMILIES.items()}
        self._labels = {"model": model, "version": version}
        self._metrics: dict[tuple[str, str, str], Any] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._lock = threading.Lock()
        self._is_closed = threading.Event()
        self._flusher: threading.Thread | None = None

    def note(self, release: int, arm: str) -> None:
        """Count a request that goes to a release. Args: `arm`: arm that it counts for; "": it is not compared."""
        self._count(_REQUESTS, release, arm or "none")

    def note_fallback(self, release: int, reason: str) -> None:
        """Count a request that a release did not take."""
        self._count(_FALLBACKS, release, reason)

    def close(self) -> None:
        """Send what is left."""
        self._is_closed.set()
        self._flush()

    def _count(self, name: str, release: int, value: str) -> None:
        with self._lock:
            self._counts[name, str(release), value] += 1
            if self._flusher is None:  # no thread in a process that never splits
                self._flusher = threading.Thread(target=self._flush_always, name="split-metrics", daemon=True)
                self._flusher.start()

    def _flush_always(self) -> None:
        while not self._is_closed.wait(_FLUSH_S):
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            counts, self._counts = self._counts, Counter()
            for key, count in counts.items():
                if key not in self._metrics:
                    name, release, value = key
                    labels = {"release": release, "arm" if name == _REQUESTS else "reason": value}
                    self._metrics[key] = self._families[name].Metric(labels=self._labels | labels)
                self._metrics[key].increment(count)
