# SPDX-License-Identifier: Apache-2.0
"""The saving of each change alone, as the last one, and with all others.

Savings do not add up: a GPU hour that quantization has saved cannot be saved again by spot. So every combination is
billed by itself. `saving` of all together does not depend on an order; what of it belongs to which lever does, and is
given as the mean over all orders (Shapley's value), whose parts sum to the whole.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

from build_engines.cost.bill import bill
from build_engines.cost.cost_spec import CostSpec, Levers, PlannedEngine, changed
from trireme.base.errors import SpecError

Change = Mapping[str, object]  # of `cost_spec.changed`


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
            with_them = reduce(changed, (changes[name] for name in names), spec)
            usd_of[frozenset(names)] = bill(with_them).total_usd
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
    if (quantized := levers.quantization) is not None:
        formats = quantized.model_dump(include={"weight_format", "kv_format"}, exclude_none=True)
        found["quantization"] = _faster("quantization", spec, formats, quantized.rate_factor)
    if (batched := levers.batching) is not None:
        batch = {"max_batch_size": batched.max_batch_size, "longest_over_mean_output": 1.0}
        found["batching"] = _faster("batching", spec, batch, batched.rate_factor)
    if levers.prefix_cache is not None:
        found["prefix_cache"] = {"traffic.cached_fraction": levers.prefix_cache.cached_fraction}
    if levers.tiers is not None:
        found["tiers"] = {"tier": levers.tiers}
    if levers.spot is not None:
        if spec.prices.spot_usd_per_gpu_hour is None:
            raise SpecError("levers.spot: give prices.spot_usd_per_gpu_hour, too", field="prices.spot_usd_per_gpu_hour")
        found["spot"] = {"prices.spot_fraction": levers.spot.fraction}
    if levers.off_hours is not None:
        found["off_hours"] = {"fleet.follows_traffic": True, "fleet.min_replicas": levers.off_hours.min_replicas}
    return found


def _faster(name: str, spec: CostSpec, planned: Mapping[str, object], factor: float | None) -> Change:
    """Return a change of the large engine: planned with other settings, or `factor` times as fast as measured."""
    field = f"levers.{name}.rate_factor"
    if isinstance(spec.engine, PlannedEngine):
        if factor is not None:
            raise SpecError(
                f"{field} is {factor:g}, and what a planned engine would be is planned, too; leave it out",
                field=field,
                value=factor,
            )
        return {f"engine.{setting}": value for setting, value in planned.items()}
    if factor is None:
        raise SpecError(
            f"levers.{name}: the engine's rates are given, and nothing says what they would be; give rate_factor, "
            "measured, or engine.kind: planned",
            field=field,
        )
    rates = [rate for rate in type(spec.engine).model_fields if rate.endswith("_tokens_per_s")]
    faster: dict[str, object] = {f"engine.{rate}": lambda old: old * factor for rate in rates}
    return {**faster, "engine.source": lambda old: f"{old}, x {factor:g}"}


def _shapley(name: str, everything: frozenset[str], usd_of: Mapping[frozenset[str], float]) -> float:
    """Return the mean, over all orders in which the levers could be pulled, of what this one saves in its turn."""
    others, count = everything - {name}, len(everything)
    total = 0.0
    for size in range(count):
        weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
        for before in map(frozenset, combinations(sorted(others), size)):
            total += weight * (usd_of[before] - usd_of[before | {name}])
    return total
