# SPDX-License-Identifier: Apache-2.0
"""The knee of a load curve, beyond which more load costs more latency than it brings throughput."""

from collections.abc import Sequence

from clients.load_report.run_figures import RunFigures


def knee_of(runs: Sequence[RunFigures]) -> int | None:
    """Return the number of the run with the greatest power: throughput over mean end-to-end latency.

    Source: Kleinrock, "Power and deterministic rules of thumb for probabilistic problems in computer communications",
    1979. None: fewer than three runs have both, or the greatest is at an end, so that the knee is not among them.
    """
    powers = [
        (figures.output_tokens.per_s / figures.latencies["e2e"].mean, figures.output_tokens.per_s, number)
        for number, figures in enumerate(runs)
        if "e2e" in figures.latencies
    ]
    if len(powers) < 3:
        return None
    by_throughput = sorted(powers, key=lambda each: each[1])
    best = max(by_throughput)
    return None if best in (by_throughput[0], by_throughput[-1]) else best[2]
