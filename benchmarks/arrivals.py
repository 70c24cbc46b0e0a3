# SPDX-License-Identifier: Apache-2.0
"""When the requests of an open loop are due: in the shapes that benchmarks ask for."""

import random
from collections.abc import Iterator

SHAPES = ("poisson", "bursty")
_BURST_S = 1.0  # a bursty second has four times the rate of the three that follow


def arrivals_s(rng: random.Random, shape: str, per_s: float, seconds: float) -> Iterator[float]:
    """Seconds from the start; one more than fit. Bursty: the same mean, most of it in one second of four."""
    at = 0.0
    while at < seconds:
        rate = per_s
        if shape == "bursty":
            rate *= 16 / 7 if at % (4 * _BURST_S) < _BURST_S else 4 / 7
        at += rng.expovariate(rate)
        yield at
