# SPDX-License-Identifier: Apache-2.0
"""The change of the price of a million tokens with each assumption by itself: the bars of a tornado chart.

Throughput stays what it was measured or planned to be while the mix of tokens moves; plan again for another mix.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from build_engines.cost.bill import Pool, Scenario, bill
from build_engines.cost.cost_spec import GpuPrices

Moved = Callable[[Scenario, float], Scenario]


@dataclass(frozen=True)
class Sensitivity:
    """US dollars per million tokens with one assumption lower and higher."""

    name: str
    low_usd: float
    high_usd: float

    @property
    def swing_usd(self) -> float:
        """Return the distance between the two prices."""
        return abs(self.high_usd - self.low_usd)


def sensitivities(scenario: Scenario, *, fraction: float = 0.2) -> tuple[Sensitivity, ...]:
    """Return the sensitivity to each assumption, less and more by the fraction, the largest first.

    Assumptions without effect are left out. Shares (utilisation, cached prompts) go up to 1 at most.
    """
    found = [
        Sensitivity(
            name,
            bill(move(scenario, 1 - fraction)).usd_per_million,
            bill(move(scenario, 1 + fraction)).usd_per_million,
        )
        for name, move in _ASSUMPTIONS.items()
    ]
    return tuple(sorted((one for one in found if one.swing_usd), key=lambda one: -one.swing_usd))


def _pools(change: Callable[[Pool, float], Pool]) -> Moved:
    return lambda scenario, factor: replace(scenario, pools=tuple(change(one, factor) for one in scenario.pools))


def _traffic(name: str, most: float = float("inf")) -> Moved:
    def change(pool: Pool, factor: float) -> Pool:
        value = min(most, getattr(pool.traffic, name) * factor)
        return replace(pool, traffic=pool.traffic.model_copy(update={name: value}))

    return _pools(change)


def _rate(name: str) -> Moved:
    def change(pool: Pool, factor: float) -> Pool:
        seconds = getattr(pool.rates, name) / factor
        return replace(pool, rates=replace(pool.rates, **{name: seconds}))

    return _pools(change)


def _gpu_price(pool: Pool, factor: float) -> Pool:
    names = [name for name in GpuPrices.model_fields if name.endswith("_usd_per_gpu_hour")]
    prices = {name: price * factor for name in names if (price := getattr(pool.prices, name)) is not None}
    return replace(pool, prices=pool.prices.model_copy(update=prices))


def _peak(pool: Pool, factor: float) -> Pool:
    """Return the pool with its peak over the mean times `factor`; the peak is never under the mean."""
    if pool.traffic.hourly is not None:
        return pool
    peak = min(2.0, max(1.0, pool.traffic.peak_over_mean * factor))
    return replace(pool, traffic=pool.traffic.model_copy(update={"peak_over_mean": peak}))


def _utilisation(scenario: Scenario, factor: float) -> Scenario:
    target = min(1.0, scenario.fleet.target_utilisation * factor)
    return replace(scenario, fleet=scenario.fleet.model_copy(update={"target_utilisation": target}))


def _other(name: str) -> Moved:
    def move(scenario: Scenario, factor: float) -> Scenario:
        value = getattr(scenario.other, name) * factor
        return replace(scenario, other=scenario.other.model_copy(update={name: value}))

    return move


_ASSUMPTIONS: dict[str, Moved] = {
    "price of a GPU hour": _pools(_gpu_price),
    "prefill tokens/s": _rate("prefill_s"),
    "decode tokens/s": _rate("decode_s"),
    "requests": _traffic("requests_per_s"),
    "tokens of a prompt": _traffic("isl"),
    "tokens of an answer": _traffic("osl"),
    "cached share of prompts": _traffic("cached_fraction", 1 - 1e-9),
    "peak over mean": _pools(_peak),
    "target utilisation": _utilisation,
    "engineers' hours": _other("hours_per_engineer_month"),
    "egress": _other("egress_usd_per_gb"),
    "storage": _other("storage_gb"),
}
