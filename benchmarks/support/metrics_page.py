# SPDX-License-Identifier: Apache-2.0
"""The metrics page of a server, as a benchmark reads it."""

from clients.load_report.server_figures import total
from clients.load_run.server_samples import ServerSample, read_metrics


def metric(address: str, name: str, *, model: str | None = None) -> float:
    """Return the sum of a metric over versions and further labels, at ``host:port``; 0 where there is none."""
    return total(ServerSample(0, read_metrics(f"http://{address}/metrics")), name, model) or 0.0
