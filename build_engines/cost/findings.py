# SPDX-License-Identifier: Apache-2.0
"""The findings of `trireme cost` about one fleet, as values; tables, pictures and JSON are made of them."""

from dataclasses import asdict, dataclass

from build_engines.cost.bill import Bill, PoolBill, bill
from build_engines.cost.break_even import BreakEven, break_even
from build_engines.cost.cost_spec import CostSpec, Levers
from build_engines.cost.levers import LeverPlan, plan_levers
from build_engines.cost.managed_prices import ManagedPrices
from build_engines.cost.sensitivity import Sensitivity, sensitivities
from build_engines.cost.usage_records import TenantShare, Usage, tenant_shares


@dataclass(frozen=True)
class Findings:
    """The findings about one fleet, for a month."""

    spec: CostSpec
    bill: Bill
    tenants: tuple[TenantShare, ...]
    managed: ManagedPrices
    break_evens: tuple[BreakEven, ...]
    sensitivity_fraction: float | None
    sensitivities: tuple[Sensitivity, ...]
    levers: LeverPlan | None


def find(
    spec: CostSpec, managed: ManagedPrices, *, usage: Usage | None = None, sensitivity_fraction: float | None = 0.2
) -> Findings:
    """Compute every finding about a fleet.

    Args:
        usage: recorded requests, for the tenants' shares; the caller takes their traffic (`Usage.traffic`).
        sensitivity_fraction: None leaves the sensitivities out.

    Raises:
        SpecError: from `bill.bill`, `levers.plan_levers` and `usage_records.tenant_shares`.
    """
    found = bill(spec)
    return Findings(
        spec=spec,
        bill=found,
        tenants=tenant_shares(found, usage) if usage else (),
        managed=managed,
        break_evens=tuple(break_even(spec, price) for price in managed.of(spec.engine.model)),
        sensitivity_fraction=sensitivity_fraction,
        sensitivities=() if sensitivity_fraction is None else sensitivities(spec, fraction=sensitivity_fraction),
        # Of hardware that costs nothing, nothing can be saved.
        levers=plan_levers(spec) if spec.levers != Levers() and found.total_usd else None,
    )


def as_data(found: Findings) -> dict[str, object]:
    """Return every finding with units in the names; dollars and tokens are of a month."""
    total = found.bill
    return {
        "assumptions": found.spec.model_dump(mode="json"),
        "bill": {
            "total_usd": total.total_usd,
            "gpu_usd": total.gpu_usd,
            "gpu_idle_usd": total.idle_usd,
            "egress_usd": total.egress_usd,
            "storage_usd": total.storage_usd,
            "engineers_usd": total.engineers_usd,
            "input_usd": total.input_usd,
            "output_usd": total.output_usd,
            "usd_per_million_input_tokens": total.usd_per_million_input,
            "usd_per_million_output_tokens": total.usd_per_million_output,
            "usd_per_million_tokens": total.usd_per_million,
            "tokens": asdict(total.tokens),
            "pools": [_pool_as_data(one) for one in total.pools],
        },
        "tenants": [asdict(one) for one in found.tenants],
        "managed_prices_collected": found.managed.collected.isoformat(),
        "break_even": [{**one._asdict(), "price": one.price.model_dump()} for one in found.break_evens],
        "sensitivity": {
            "fraction": found.sensitivity_fraction,
            "usd_per_million_tokens": [asdict(one) for one in found.sensitivities],
        },
        "levers": None if found.levers is None else _levers_as_data(found.levers),
    }


def _pool_as_data(pool: PoolBill) -> dict[str, object]:
    return {
        "model": pool.model,
        "rates": {
            "gpus": pool.rates.num_gpus,
            "prefill_tokens_per_s": 1 / pool.rates.prefill_s if pool.prompt_share else None,
            "decode_tokens_per_s": 1 / pool.rates.decode_s,
            "source": pool.rates.source,
            "uncertainty_factor": pool.rates.uncertainty,
        },
        "replicas_by_hour": list(pool.replicas),
        "utilisation": pool.utilisation,
        "prompt_share": pool.prompt_share,
        "gpu_usd": pool.gpu_usd,
        "tokens": asdict(pool.tokens),
    }


def _levers_as_data(plan: LeverPlan) -> dict[str, object]:
    return {
        "usd": plan.usd,
        "joint_usd": plan.joint_usd,
        "interaction_usd": plan.interaction_usd,
        "fewest_that_halve": plan.fewest_for(plan.usd / 2),
        "savings_usd": [asdict(one) for one in plan.savings],
        "usd_of": {" + ".join(sorted(names)) or "none": usd for names, usd in plan.usd_of.items()},
    }
