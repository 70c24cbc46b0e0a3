# SPDX-License-Identifier: Apache-2.0
"""The moments at which the requests of an open loop are due, whatever the server does."""

import math
import random
from collections.abc import Callable, Iterator

from trireme.base.errors import RequestError

SHAPES = ("constant", "poisson", "gamma", "bursty", "diurnal")
_BURST_S = 1.0  # a bursty second has four times the rate of the three that follow
_DAY_SWING = 0.8  # a diurnal rate goes from 0.2 to 1.8 times its mean


def arrivals_s(
    rng: random.Random,
    shape: str,
    per_s: float,
    seconds: float = math.inf,
    *,
    burstiness: float = 1.0,
    period_s: float = 86_400.0,
) -> Iterator[float]:
    """Yield moments in seconds from the start; one more than fit into `seconds`.

    Args:
        shape: ``constant``: as far apart as can be. ``poisson``: independent of one another. ``gamma``: gaps of the
            gamma distribution. ``bursty``: Poisson, most of it in one second of four. ``diurnal``: Poisson at a rate
            that swings as a sine between 0.2 and 1.8 of its mean, from its lowest point on.
        per_s: the mean rate.
        burstiness: shape parameter of ``gamma``, as in vLLM's benchmark; 1 is Poisson, below comes in bursts.
        period_s: length of a day of ``diurnal``.

    Raises:
        RequestError: another shape, or a number that is not above 0.
    """
    for name, value in (("rate", per_s), ("burstiness", burstiness), ("period_s", period_s)):
        if not (value > 0 and math.isfinite(value)):
            raise RequestError(f"{name} must be above 0, got {value:g}", field=name, value=value)
    at = 0.0
    gap = _gaps(rng, shape, per_s, burstiness=burstiness, period_s=period_s)
    while at < seconds:
        at += gap(at)
        yield at


def _gaps(
    rng: random.Random, shape: str, per_s: float, *, burstiness: float, period_s: float
) -> Callable[[float], float]:
    """Return a function of the last moment that gives the gap to the next one, in seconds."""

    def bursty(at: float) -> float:
        return rng.expovariate(per_s * (16 / 7 if at % (4 * _BURST_S) < _BURST_S else 4 / 7))

    def diurnal(at: float) -> float:
        # Thinning (Lewis and Shedler 1979): of arrivals at the highest rate each is kept with its moment's share.
        highest_per_s, start = per_s * (1 + _DAY_SWING), at
        while True:
            at += rng.expovariate(highest_per_s)
            if rng.random() * (1 + _DAY_SWING) < 1 - _DAY_SWING * math.cos(2 * math.pi * at / period_s):
                return at - start

    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda _: 1 / per_s,
        "poisson": lambda _: rng.expovariate(per_s),
        "gamma": lambda _: rng.gammavariate(burstiness, 1 / (per_s * burstiness)),
        "bursty": bursty,
        "diurnal": diurnal,
    }
    if shape not in shapes:
        raise RequestError(f"arrivals must be one of {', '.join(SHAPES)}, got {shape!r}", field="arrivals", value=shape)
    return shapes[shape]
