# SPDX-License-Identifier: Apache-2.0
"""The saving of each change alone, as the last one, and with all others.

Savings do not add up: a GPU hour that quantization has saved cannot be saved again by spot. So every combination is
billed by itself. `saving` of all together does not depend on an order; what of it belongs to which lever does, and is
given as the mean over all orders (Shapley's value), whose parts sum to the whole.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations

from build_engines.cost.bill import bill, scenario_of
from build_engines.cost.cost_spec import (
    Batched,
    Cached,
    CostSpec,
    Engine,
    Levers,
    MeasuredEngine,
    OffHours,
    PlannedEngine,
    Quantized,
    RatedEngine,
    Spot,
    Tier,
)
from trireme.base.errors import SpecError

Change = Callable[[CostSpec], CostSpec]


@dataclass(frozen=True)
class LeverSaving:
    """The saving of one lever, in US dollars a month."""

    name: str
    formula: str
    alone: float  # saving from the fleet as it is
    last: float  # saving from the fleet with all other levers
    share: float  # part of what all levers save together


@dataclass(frozen=True)
class LeverPlan:
    """The savings of all levers on one fleet."""

    usd: float
    savings: tuple[LeverSaving, ...]
    usd_of: Mapping[frozenset[str], float]  # bill of every combination

    @property
    def joint_usd(self) -> float:
        """Return the saving of all levers together, in US dollars."""
        return self.usd_of[frozenset(one.name for one in self.savings)]

    @property
    def interaction_usd(self) -> float:
        """Return what the sum of the single savings says too much (negative) or too little."""
        return self.usd - self.joint_usd - sum(one.alone for one in self.savings)

    def fewest_for(self, target_usd: float) -> tuple[str, ...] | None:
        """Return the cheapest of the smallest combinations that reach a bill of `target_usd`.

        None: not even all levers together reach it.
        """
        enough = [names for names, usd in self.usd_of.items() if usd <= target_usd]
        if not enough:
            return None
        best = min(enough, key=lambda names: (len(names), self.usd_of[names]))
        return tuple(one.name for one in self.savings if one.name in best)


def plan_levers(spec: CostSpec) -> LeverPlan:
    """Bill every combination of the levers in `spec.levers`.

    Raises:
        SpecError: there is no lever, or one cannot be: no spot price, a measured engine without its factor.
    """
    changes = _changes(spec)
    if not changes:
        raise SpecError(f"levers: none is given; there are {', '.join(Levers.model_fields)}", field="levers")
    usd_of = {}
    for size in range(len(changes) + 1):
        for names in combinations(changes, size):
            changed = spec
            for name in names:
                changed = changes[name](changed)
            usd_of[frozenset(names)] = bill(scenario_of(changed)).total_usd
    everything, nothing = frozenset(changes), frozenset[str]()
    savings = tuple(
        LeverSaving(
            name=name,
            formula=FORMULAS[name],
            alone=usd_of[nothing] - usd_of[frozenset({name})],
            last=usd_of[everything - {name}] - usd_of[everything],
            share=_shapley(name, everything, usd_of),
        )
        for name in changes
    )
    return LeverPlan(usd_of[nothing], savings, usd_of)


# Each changes one assumption; what follows is arithmetic of `bill` and the planner's.
FORMULAS = {
    "quantization": "rates of the other formats, planned or measured",
    "batching": "rates of the larger batch; no answer waits for the longest of its batch",
    "prefix_cache": "a prompt's prefill is (1 - cached fraction) of it; decoding as before",
    "tiers": "requests x fraction on a second pool with its own rates, spare and rounding",
    "spot": "price = (1 - f) on demand + f spot / (1 - lost)",
    "off_hours": "replicas of each hour instead of the busiest hour's all day",
}


def _changes(spec: CostSpec) -> dict[str, Change]:
    levers, found = spec.levers, dict[str, Change]()
    if levers.quantization is not None:
        found["quantization"] = _quantized(levers.quantization)
    if levers.batching is not None:
        found["batching"] = _batched(levers.batching)
    if levers.prefix_cache is not None:
        found["prefix_cache"] = _cached(levers.prefix_cache)
    if levers.tiers is not None:
        found["tiers"] = _tiered(levers.tiers)
    if levers.spot is not None:
        found["spot"] = _on_spot(levers.spot)
    if levers.off_hours is not None:
        found["off_hours"] = _off_hours(levers.off_hours)
    return found


def _quantized(lever: Quantized) -> Change:
    formats = {name: value for name in ("weight_format", "kv_format") if (value := getattr(lever, name)) is not None}
    return _faster("quantization", formats, lever.rate_factor)


def _batched(lever: Batched) -> Change:
    batch = {"max_batch_size": lever.max_batch_size, "longest_over_mean_output": 1.0}
    return _faster("batching", batch, lever.rate_factor)


def _faster(name: str, update: Mapping[str, object], factor: float | None) -> Change:
    """Return a change of the large engine: planned with other settings, or `factor` times as fast as measured."""

    def change(spec: CostSpec) -> CostSpec:
        engine: Engine = spec.engine
        if isinstance(engine, PlannedEngine):
            if factor is not None:
                raise SpecError(
                    f"levers.{name}.rate_factor is {factor:g}, and what a planned engine would be is planned, too; "
                    "leave it out",
                    field=f"levers.{name}.rate_factor",
                    value=factor,
                )
            return spec.model_copy(update={"engine": engine.model_copy(update=update)})
        if factor is None:
            raise SpecError(
                f"levers.{name}: the engine's rates are given, and nothing says what they would be; give rate_factor, "
                "measured, or engine.kind: planned",
                field=f"levers.{name}.rate_factor",
            )
        return spec.model_copy(update={"engine": _times_as_fast(engine, factor)})

    return change


def _times_as_fast(engine: RatedEngine | MeasuredEngine, factor: float) -> RatedEngine | MeasuredEngine:
    rates = {name: value * factor for name, value in vars(engine).items() if name.endswith("_tokens_per_s")}
    return engine.model_copy(update={**rates, "source": f"{engine.source}, x {factor:g}"})


def _cached(lever: Cached) -> Change:
    return lambda spec: spec.model_copy(
        update={"traffic": spec.traffic.model_copy(update={"cached_fraction": lever.cached_fraction})}
    )


def _tiered(lever: Tier) -> Change:
    return lambda spec: spec.model_copy(update={"tier": lever})


def _on_spot(lever: Spot) -> Change:
    def change(spec: CostSpec) -> CostSpec:
        if spec.prices.spot_usd_per_gpu_hour is None:
            raise SpecError("levers.spot: give prices.spot_usd_per_gpu_hour, too", field="prices.spot_usd_per_gpu_hour")
        prices = spec.prices.model_copy(update={"spot_fraction": lever.fraction})
        return spec.model_copy(update={"prices": prices})

    return change


def _off_hours(lever: OffHours) -> Change:
    update = {"follows_traffic": True, "min_replicas": lever.min_replicas}
    return lambda spec: spec.model_copy(update={"fleet": spec.fleet.model_copy(update=update)})


def _shapley(name: str, everything: frozenset[str], usd_of: Mapping[frozenset[str], float]) -> float:
    """Return the mean, over all orders in which the levers could be pulled, of what this one saves in its turn."""
    others, count = everything - {name}, len(everything)
    total = 0.0
    for size in range(count):
        weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for before in map(frozenset, combinations(sorted(others), size)):
            total += weight * (usd_of[before] - usd_of[before | {name}])
    return total
