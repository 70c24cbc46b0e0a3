# SPDX-License-Identifier: Apache-2.0
"""From how many tokens a month on a fleet of one's own is cheaper than a managed price list.

The bill of a fleet, C(T), never falls with traffic and jumps with each replica; a managed one, m T, is a line. They
meet where T = C(T) / m. As C(T) / m never falls, iterating it from a T that is surely above ends at the last meeting
point, from 0 at the first (its greatest and least fixed point); between the two it is now cheaper and now dearer.
"""

from typing import NamedTuple

from build_engines.cost.bill import HOURS_PER_MONTH, Pool, Scenario, bill, hourly_requests_per_s
from build_engines.cost.managed_prices import ManagedPrice

# Where a fleet is cheaper by a hair, more would be needed; what has been reached by then is still a bound.
_MOST_STEPS = 20_000
_CLOSE = 1e-12


class BreakEven(NamedTuple):
    """Against one price; tokens are of a month, in and out, None: never, whatever the traffic."""

    price: ManagedPrice
    managed_usd: float  # a month, at today's traffic
    managed_usd_per_million: float  # at the traffic's own mix
    limit_usd_per_million: float  # of the fleet, when it is so large that nothing else counts
    first_tokens: float | None  # here it is as cheap for the first time
    tokens: float | None  # and from here on always cheaper


def break_even(scenario: Scenario, price: ManagedPrice) -> BreakEven:
    """With the mix of input, cached and output tokens as it is; only their number changes."""
    tokens = bill(scenario).tokens
    managed_usd = price.usd(tokens)
    managed, limit = managed_usd / tokens.total, limit_usd_per_token(scenario)
    first = always = None
    if managed > limit:
        # C(T) <= fixed + limit T, whatever is rounded up: from here on the fleet is cheaper.
        surely = _most_fixed_usd(scenario) / (managed - limit)
        always = _fixed_point(scenario, managed, tokens.total, surely)
        first = _fixed_point(scenario, managed, tokens.total, 0.0)
    return BreakEven(price, managed_usd, managed * 1e6, limit * 1e6, first, always)


def usd_at(scenario: Scenario, tokens: float) -> float:
    """The fleet's bill of a month with so many tokens instead of today's."""
    return bill(scenario.scaled(tokens / bill(scenario).tokens.total)).total_usd


def limit_usd_per_token(scenario: Scenario) -> float:
    """A further token's price once replicas are many: nothing fixed, nothing rounded up."""
    now = bill(scenario)
    gpu_usd = sum(
        HOURS_PER_MONTH * _busy(one) / scenario.fleet.target_utilisation
        * _paid_over_busy(one, follows_traffic=scenario.fleet.follows_traffic)
        * one.rates.num_gpus * one.prices.flexible_usd_per_gpu_hour
        for one in scenario.pools
    )  # fmt: skip
    return (gpu_usd + now.egress_usd) / now.tokens.total


def _busy(pool: Pool) -> float:
    traffic = pool.traffic
    return traffic.requests_per_s * pool.rates.seconds(traffic.isl * (1 - traffic.cached_fraction), traffic.osl)


def _paid_over_busy(pool: Pool, *, follows_traffic: bool) -> float:
    return 1.0 if follows_traffic else max(hourly_requests_per_s(pool.traffic)) / pool.traffic.requests_per_s


def _most_fixed_usd(scenario: Scenario) -> float:
    """What does not grow with traffic; at least one replica is kept, so that has what is rounded up, too."""
    fleet, now = scenario.fleet, bill(scenario)
    usd = now.storage_usd + now.engineers_usd
    for pool in scenario.pools:
        prices = pool.prices
        flexible = (fleet.min_replicas + fleet.spare_replicas) * prices.flexible_usd_per_gpu_hour
        reserved = prices.reserved_replicas * (prices.reserved_usd_per_gpu_hour or 0.0)
        usd += HOURS_PER_MONTH * pool.rates.num_gpus * (flexible + reserved)
    return usd


def _fixed_point(scenario: Scenario, managed: float, total: float, start: float) -> float:
    tokens = start
    for _ in range(_MOST_STEPS):
        following = bill(scenario.scaled(tokens / total)).total_usd / managed
        if abs(following - tokens) <= _CLOSE * following:
            return following
        tokens = following
    return tokens
