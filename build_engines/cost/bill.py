# SPDX-License-Identifier: Apache-2.0
"""The monthly cost of a fleet, divided into prompts, answers and idle time: pure arithmetic.

The replicas of an hour are the fewest whole ones that its work keeps at most `target_utilisation` busy, and the spare.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from build_engines.cost.cost_spec import CostSpec, Fleet, GpuPrices, RatedEngine, Traffic, changed
from build_engines.cost.engine_rates import Rates, rates_of

HOURS_PER_MONTH = 8760 / 12
_ROUNDING = 1e-9  # work that fills so many replicas but for this fits in them


class Pool(NamedTuple):
    """The replicas of one model, and the traffic on them."""

    model: str
    rates: Rates
    prices: GpuPrices
    traffic: Traffic


@dataclass(frozen=True)
class Tokens:
    """Tokens of a month."""

    prefilled: float = 0
    cached: float = 0
    output: float = 0

    @property
    def total(self) -> float:
        """Return the sum of input and output tokens."""
        return self.prefilled + self.cached + self.output

    def __add__(self, other: "Tokens") -> "Tokens":
        return Tokens(self.prefilled + other.prefilled, self.cached + other.cached, self.output + other.output)


@dataclass(frozen=True)
class PoolBill:
    """The monthly bill for one pool's GPUs."""

    model: str
    rates: Rates
    replicas: tuple[int, ...]  # of each hour of the day
    mean_busy: float  # replicas' worth of work, over the day
    gpu_usd: float
    prompt_share: float  # of the work
    tokens: Tokens

    @property
    def utilisation(self) -> float:
        """Return the utilisation of the replicas that are paid for, mean over the day."""
        return 24 * self.mean_busy / sum(self.replicas)

    @property
    def input_usd(self) -> float:
        """Return the prompts' share of the pool's GPUs, in US dollars, idle time in proportion."""
        return self.gpu_usd * self.prompt_share

    @property
    def output_usd(self) -> float:
        """Return the answers' share of the pool's GPUs, in US dollars, idle time in proportion."""
        return self.gpu_usd * (1 - self.prompt_share)


@dataclass(frozen=True)
class Bill:
    """The bill of a month, in US dollars."""

    pools: tuple[PoolBill, ...]
    egress_usd: float
    storage_usd: float
    engineers_usd: float

    @cached_property
    def tokens(self) -> Tokens:
        """Return the tokens of all pools."""
        return sum((one.tokens for one in self.pools), Tokens())

    @property
    def gpu_usd(self) -> float:
        """Return the cost of the GPUs of all pools."""
        return sum(one.gpu_usd for one in self.pools)

    @property
    def idle_usd(self) -> float:
        """Return the cost of idle GPUs: paid, and not at work (reserve for bursts, spare replicas, quiet hours)."""
        return sum(one.gpu_usd * (1 - one.utilisation) for one in self.pools)

    @property
    def total_usd(self) -> float:
        """Return the whole bill."""
        return self.gpu_usd + self.egress_usd + self.storage_usd + self.engineers_usd

    @property
    def input_usd(self) -> float:
        """Return the prompts' share: their GPUs, and storage and engineers in proportion to the work."""
        return sum(one.input_usd for one in self.pools) + self._shared_usd * self._prompt_share

    @property
    def output_usd(self) -> float:
        """Return the answers' share: their GPUs, their egress, and storage and engineers in proportion to the work."""
        answers = sum(one.output_usd for one in self.pools)
        return answers + self.egress_usd + self._shared_usd * (1 - self._prompt_share)

    @property
    def usd_per_million_input(self) -> float | None:
        """Return US dollars per million prompt tokens that are not cached, or None if there are none."""
        return self.input_usd / self.tokens.prefilled * 1e6 if self.tokens.prefilled else None

    @property
    def usd_per_million_output(self) -> float:
        """Return US dollars per million answer tokens."""
        return self.output_usd / self.tokens.output * 1e6

    @property
    def usd_per_million(self) -> float:
        """Return US dollars per million tokens of any kind, cached ones too."""
        return self.total_usd / self.tokens.total * 1e6

    @property
    def _shared_usd(self) -> float:
        return self.storage_usd + self.engineers_usd

    @property
    def _prompt_share(self) -> float:
        work = [one.mean_busy * one.rates.num_gpus for one in self.pools]
        return sum(gpus * one.prompt_share for gpus, one in zip(work, self.pools, strict=True)) / sum(work)


def pools_of(spec: CostSpec) -> tuple[Pool, ...]:
    """Return the pools of a fleet: their rates come from the planner, or from what was measured.

    Raises:
        SpecError: the planner knows no such model, GPU or format, nothing fits, or nothing meets the targets; only
            output was measured, and the traffic has prompts.
    """
    parts = [(spec.engine, spec.prices, 1.0)]
    if (tier := spec.tier) is not None:
        # What is reserved is so many of the large model's replicas, no price.
        prices = tier.prices or spec.prices.model_copy(update={"reserved_replicas": 0})
        parts = [(spec.engine, spec.prices, 1 - tier.request_fraction), (tier.engine, prices, tier.request_fraction)]
    shares = [(engine, prices, _scaled(spec.traffic, share)) for engine, prices, share in parts]
    return tuple(Pool(engine.model, rates_of(engine, part), prices, part) for engine, prices, part in shares)


def scaled(spec: CostSpec, factor: float) -> CostSpec:
    """Return the fleet with `factor` times the requests."""
    return changed(spec, {"traffic": lambda traffic: _scaled(traffic, factor)})


def _scaled(traffic: Traffic, factor: float) -> Traffic:
    return traffic.model_copy(update={"requests_per_s": traffic.requests_per_s * factor})


def with_rates(spec: CostSpec) -> CostSpec:
    """Return the fleet with the rates that it has under today's mix of tokens, whatever the mix becomes.

    Raises:
        SpecError: as `pools_of`.
    """
    engines = [
        RatedEngine(
            kind="rates", model=one.model, gpus=one.rates.num_gpus, source=one.rates.source,
            prefill_tokens_per_s=1 / one.rates.prefill_s, decode_tokens_per_s=1 / one.rates.decode_s,
        )
        for one in pools_of(spec)
    ]  # fmt: skip
    return changed(spec, dict(zip(("engine", "tier.engine"), engines, strict=False)))


def bill(spec: CostSpec) -> Bill:
    """Return the bill of one month.

    Raises:
        SpecError: as `pools_of`.
    """
    pools = tuple(_pool_bill(one, spec.fleet) for one in pools_of(spec))
    output = sum(one.tokens.output for one in pools)
    other = spec.other
    return Bill(
        pools=pools,
        egress_usd=output * other.egress_bytes_per_output_token / 1e9 * other.egress_usd_per_gb,
        storage_usd=other.storage_gb * other.storage_usd_per_gb_month,
        engineers_usd=other.engineers * other.hours_per_engineer_month * other.usd_per_engineer_hour,
    )


def hourly_requests_per_s(traffic: Traffic) -> tuple[float, ...]:
    """Return the requests per second of each hour of a day; the cosine's top is at 14 h, where it does not matter."""
    if traffic.hourly is not None:
        mean = sum(traffic.hourly) / 24
        return tuple(traffic.requests_per_s * hour / mean for hour in traffic.hourly)
    swing = traffic.peak_over_mean - 1
    return tuple(traffic.requests_per_s * (1 + swing * math.cos(2 * math.pi * (hour - 14) / 24)) for hour in range(24))


def replicas_needed(busy: float, fleet: Fleet) -> int:
    """Return the number of replicas to keep for the work of `busy` fully used ones."""
    return max(fleet.min_replicas, math.ceil(busy / fleet.target_utilisation - _ROUNDING)) + fleet.spare_replicas


def _pool_bill(pool: Pool, fleet: Fleet) -> PoolBill:
    traffic, rates = pool.traffic, pool.rates
    prefilled, output = traffic.prefilled, traffic.osl
    request_s = rates.seconds(prefilled, output)
    busy = [requests_per_s * request_s for requests_per_s in hourly_requests_per_s(traffic)]
    needed = [replicas_needed(hour, fleet) for hour in busy]
    kept = needed if fleet.follows_traffic else [max(needed)] * 24
    paid = tuple(max(hour, pool.prices.reserved_replicas) for hour in kept)
    requests = traffic.requests_per_s * 3600 * HOURS_PER_MONTH
    return PoolBill(
        model=pool.model,
        rates=rates,
        replicas=paid,
        mean_busy=sum(busy) / 24,
        gpu_usd=sum(_hour_usd(hour, pool) for hour in paid) / 24 * HOURS_PER_MONTH,
        prompt_share=prefilled * rates.prefill_s / request_s,
        tokens=Tokens(requests * prefilled, requests * (traffic.isl - prefilled), requests * output),
    )


def _hour_usd(replicas: int, pool: Pool) -> float:
    prices = pool.prices
    reserved = prices.reserved_replicas * (prices.reserved_usd_per_gpu_hour or 0.0)
    flexible = (replicas - prices.reserved_replicas) * prices.flexible_usd_per_gpu_hour
    return pool.rates.num_gpus * (reserved + flexible)
