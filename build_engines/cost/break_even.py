# SPDX-License-Identifier: Apache-2.0
"""The tokens a month from which a fleet of one's own is cheaper than a managed price list.

The bill of a fleet, C(T), never falls with traffic and jumps with each replica; a managed one, m T, is a line. They
meet where T = C(T) / m. As C(T) / m never falls, iterating it from a T that is surely above ends at the last meeting
point, from 0 at the first (its greatest and least fixed point); between the two it is now cheaper and now dearer.
Where reserved replicas are cheaper than m and others are not, there is a first one and no last.
"""

import math
from typing import NamedTuple

from build_engines.cost.bill import HOURS_PER_MONTH, Pool, bill, hourly_requests_per_s, pools_of, scaled
from build_engines.cost.cost_spec import CostSpec
from build_engines.cost.managed_prices import ManagedPrice

# Where a fleet is cheaper by a hair, more would be needed; what has been reached by then is still a bound.
_MOST_STEPS = 20_000
_CLOSE = 1e-12


class BreakEven(NamedTuple):
    """A break-even with one managed price, in input and output tokens a month; None: never, whatever the traffic."""

    price: ManagedPrice
    managed_usd: float  # a month, at today's traffic
    managed_usd_per_million: float  # at the traffic's own mix
    limit_usd_per_million: float  # of the fleet, when it is so large that nothing else counts
    first_tokens: float | None  # here it is as cheap for the first time; None too where that takes too many steps
    tokens: float | None  # and from here on always cheaper


def break_even(spec: CostSpec, price: ManagedPrice) -> BreakEven:
    """Return the break-even with a managed price.

    The mix of input, cached and output tokens stays; only their number changes.
    """
    tokens = bill(spec).tokens
    managed_usd = price.usd(tokens)
    managed, limit = managed_usd / tokens.total, limit_usd_per_token(spec)
    if not managed:  # nothing is cheaper than a free tier
        return BreakEven(price, managed_usd, managed, limit * 1e6, None, None)
    always = None
    if managed > limit:
        # C(T) <= fixed + limit T, whatever is rounded up: from here on the fleet is cheaper.
        surely = _most_fixed_usd(spec) / (managed - limit)
        always = _last(spec, managed, tokens.total, start=surely)
        most = surely
    else:
        # C(T) >= limit T - saved: no further than here can the fleet be cheaper.
        most = _reserved_saving_usd(spec) / (limit - managed) if limit > managed else math.inf
    first = _first(spec, managed, tokens.total, most=most)
    return BreakEven(price, managed_usd, managed * 1e6, limit * 1e6, first, always)


def usd_at(spec: CostSpec, tokens: float, now: float) -> float:
    """Return the fleet's monthly bill, in US dollars, if traffic had `tokens` tokens in place of `now`."""
    return bill(scaled(spec, tokens / now)).total_usd


def limit_usd_per_token(spec: CostSpec) -> float:
    """Return the price of a further token once replicas are many, in US dollars.

    Nothing is fixed then, and nothing rounded up.
    """
    now = bill(spec)
    gpu_usd = sum(
        HOURS_PER_MONTH * _busy(one) / spec.fleet.target_utilisation
        * _paid_over_busy(one, follows_traffic=spec.fleet.follows_traffic)
        * one.rates.num_gpus * one.prices.flexible_usd_per_gpu_hour
        for one in pools_of(spec)
    )  # fmt: skip
    return (gpu_usd + now.egress_usd) / now.tokens.total


def _busy(pool: Pool) -> float:
    traffic = pool.traffic
    return traffic.requests_per_s * pool.rates.seconds(traffic.prefilled, traffic.osl)


def _paid_over_busy(pool: Pool, *, follows_traffic: bool) -> float:
    return 1.0 if follows_traffic else max(hourly_requests_per_s(pool.traffic)) / pool.traffic.requests_per_s


def _most_fixed_usd(spec: CostSpec) -> float:
    """Return the most that does not grow with traffic, in US dollars.

    At least one replica is kept, so what is rounded up counts, too.
    """
    fleet, now = spec.fleet, bill(spec)
    usd = now.storage_usd + now.engineers_usd
    for pool in pools_of(spec):
        prices = pool.prices
        flexible = (fleet.min_replicas + fleet.spare_replicas) * prices.flexible_usd_per_gpu_hour
        reserved = prices.reserved_replicas * (prices.reserved_usd_per_gpu_hour or 0.0)
        usd += HOURS_PER_MONTH * pool.rates.num_gpus * (flexible + reserved)
    return usd


def _reserved_saving_usd(spec: CostSpec) -> float:
    """Return what reserved replicas cost less than others would, in US dollars."""
    usd = 0.0
    for pool in pools_of(spec):
        less = pool.prices.flexible_usd_per_gpu_hour - (pool.prices.reserved_usd_per_gpu_hour or 0.0)
        usd += HOURS_PER_MONTH * pool.rates.num_gpus * pool.prices.reserved_replicas * max(0.0, less)
    return usd


def _last(spec: CostSpec, managed: float, total: float, *, start: float) -> float:
    tokens = start
    for _ in range(_MOST_STEPS):
        following = usd_at(spec, tokens, total) / managed
        if following >= tokens * (1 - _CLOSE):
            return following
        tokens = following
    return tokens


def _first(spec: CostSpec, managed: float, total: float, *, most: float) -> float | None:
    """Return the first meeting point, or None if there is none up to `most`."""
    tokens = 0.0
    for _ in range(_MOST_STEPS):
        following = usd_at(spec, tokens, total) / managed
        if following <= tokens * (1 + _CLOSE):
            return following
        if following > most:
            break
        tokens = following
    return None
