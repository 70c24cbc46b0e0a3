# SPDX-License-Identifier: Apache-2.0
"""The change of the price of a million tokens with each assumption by itself: the bars of a tornado chart.

Throughput stays what it was measured or planned to be while the mix of tokens moves; plan again for another mix.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from build_engines.cost.bill import bill, with_rates
from build_engines.cost.cost_spec import CostSpec, changed


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


class _Assumption(NamedTuple):
    """An assumption: its values in a `CostSpec`, by dotted path, and their bounds."""

    paths: tuple[str, ...]
    least: float = 0.0
    most: float = inf

    def times(self, spec: CostSpec, factor: float) -> CostSpec:
        """Return the fleet with `factor` times the assumption, within its bounds."""

        def moved(old: float | None) -> float | None:
            return None if old is None else min(self.most, max(self.least, old * factor))

        return changed(spec, dict.fromkeys(self.paths, moved))


_PRICES = tuple(f"prices.{kind}_usd_per_gpu_hour" for kind in ("on_demand", "reserved", "spot"))
_ASSUMPTIONS: Mapping[str, _Assumption] = {
    "price of a GPU hour": _Assumption((*_PRICES, *(f"tier.{path}" for path in _PRICES))),
    "prefill tokens/s": _Assumption(("engine.prefill_tokens_per_s", "tier.engine.prefill_tokens_per_s")),
    "decode tokens/s": _Assumption(("engine.decode_tokens_per_s", "tier.engine.decode_tokens_per_s")),
    "requests": _Assumption(("traffic.requests_per_s",)),
    "tokens of a prompt": _Assumption(("traffic.isl",)),
    "tokens of an answer": _Assumption(("traffic.osl",)),
    "cached share of prompts": _Assumption(("traffic.cached_fraction",), most=1 - 1e-9),
    "peak over mean": _Assumption(("traffic.peak_over_mean",), least=1.0, most=2.0),  # never under the mean
    "target utilisation": _Assumption(("fleet.target_utilisation",), most=1.0),
    "engineers' hours": _Assumption(("other.hours_per_engineer_month",)),
    "egress": _Assumption(("other.egress_usd_per_gb",)),
    "storage": _Assumption(("other.storage_gb",)),
}


def sensitivities(spec: CostSpec, *, fraction: float = 0.2) -> tuple[Sensitivity, ...]:
    """Return the sensitivity to each assumption, less and more by the fraction, the largest first.

    Assumptions without effect are left out. Shares (utilisation, cached prompts) go up to 1 at most.
    """
    rated = with_rates(spec)
    found = [
        Sensitivity(
            name,
            bill(one.times(rated, 1 - fraction)).usd_per_million,
            bill(one.times(rated, 1 + fraction)).usd_per_million,
        )
        for name, one in _ASSUMPTIONS.items()
    ]
    return tuple(sorted((one for one in found if one.swing_usd), key=lambda one: -one.swing_usd))
