# SPDX-License-Identifier: Apache-2.0
"""The requests and the time that a rollout takes with the traffic that there has been, by the gate's own forecast.

What a prompt's length explains is not known beforehand, so times differ here by all that they differ by in the metrics:
a rollout, which compares like prompts, takes fewer requests. Nor is anything known of keys: users who differ take more.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from clients.rollout.estimate.seen_traffic import SeenTraffic
from clients.rollout.records.rollout_plan import Mode, Plan, gate_spec_of
from clients.rollout_gate.forecast import needed
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import METRICS
from clients.rollout_gate.sample import Counts, Level, Sample
from clients.rollout_gate.statistics.fading import BLOCKS_PER_FADE, FADES, Differences, Times
from clients.rollout_gate.sums.timeline import BLOCK_REQUESTS
from trireme.base.durations import duration

_SOME = 1000.0  # requests of the candidate in the sample that is forecast from, at least
_FASTER_STEPS = (0.25, 0.5, 1.0)
_COARSER = 2.0


class Share(msgspec.Struct, frozen=True):
    """The time at one share. `requests`: of each arm."""

    share: float
    requests: int
    seconds: float


@dataclass(frozen=True)
class Estimate:
    """The requests and the time that a rollout takes if the candidate is no worse.

    Attributes:
        shares: shares before the one at which the gate must pass the candidate, and that one.
        requests: of each arm, until the gate passes a typical candidate that is no worse; None: no number is enough.
        by: the metric that takes the most requests.
        until_fail: requests of each arm until a candidate that is worse by the effect size fails, by metric.
        max_requests: after which the rollout is held without a verdict: the gate's, or those of the time that the gate
            takes at least.
    """

    traffic: SeenTraffic
    shares: tuple[Share, ...]
    requests: int | None
    by: str
    until_fail: Mapping[str, int]
    max_requests: int

    @property
    def seconds(self) -> float | None:
        """Return the time until the last verdict; None: there is none within `max_requests`."""
        if self.requests is None or self.requests > self.max_requests:
            return None
        return sum(share.seconds for share in self.shares)

    def document(self) -> dict[str, Any]:
        """Return the estimate in JSON's types."""
        return {
            "requests_per_s": self.traffic.per_s,
            "seen": {"requests": self.traffic.requests, "seconds": self.traffic.seconds},
            "shares": msgspec.to_builtins(self.shares),
            "requests_until_pass": self.requests,
            "slowest_metric": self.by,
            "requests_until_fail": dict(self.until_fail),
            "seconds": self.seconds,
        }


def estimate(plan: Plan, traffic: SeenTraffic) -> Estimate:
    """Return what a plan's rollout takes.

    Raises:
        SpecError: the plan's settings of the gate are not valid.
    """
    spec = gate_spec_of(plan)
    judged = plan.shares[:-1] if plan.mode is Mode.CANARY and len(plan.shares) > 1 else plan.shares
    last = judged[-1]
    sample = _sample(traffic, _compared(plan, last), spec)
    known = [name for name in METRICS if name in sample.differences or name in sample.counts]
    found = {name: needed(name, sample, spec) for name in known}
    until_pass = {name: one.until_pass for name, one in found.items() if not METRICS[name].is_optional}
    by = max(until_pass, key=lambda name: math.inf if (num := until_pass[name]) is None else num)
    requests = until_pass[by]

    def at(share: float, num: int) -> Share:
        return Share(share, num, num / (traffic.per_s * _compared(plan, share)))

    at_end = max(spec.max_requests, math.ceil(FADES * spec.fade_s * traffic.per_s * _compared(plan, last)))
    num = at_end if requests is None else min(requests, at_end)
    return Estimate(
        traffic,
        (*(at(share, plan.step_requests) for share in judged[:-1]), at(last, num)),
        requests,
        by,
        {name: one.until_fail for name, one in found.items() if one.until_fail is not None},
        at_end,
    )


def lines(plan: Plan, found: Estimate) -> list[str]:
    """Return the estimate in sentences, and what would make the rollout faster."""
    traffic = found.traffic
    told = [f"at {traffic.per_s:.3g} requests a second, as in {traffic.source} ({traffic.requests:,.0f} requests):"]
    told += [
        f"  {100 * share.share:g} %: {share.requests:,} requests of each arm, {duration(share.seconds)}"
        for share in found.shares[:-1]
    ]
    last, title = found.shares[-1], METRICS[found.by].title
    if found.seconds is None:
        enough = "no number of requests is enough" if found.requests is None else f"it takes some {found.requests:,}"
        told.append(
            f"  {100 * last.share:g} %: no pass within {found.max_requests:,} requests of each arm, "
            f"{duration(last.seconds)}: {enough} for {title}"
        )
    else:
        told.append(
            f"  {100 * last.share:g} %: a pass after some {last.requests:,} requests of each arm, "
            f"{duration(last.seconds)}; most are for {title}"
        )
        told.append(f"  in all {duration(found.seconds)}, if the candidate is no worse")
    return [*told, *(f"  faster: {way}" for way in _faster(plan, found))]


def _faster(plan: Plan, found: Estimate) -> list[str]:
    ways = []
    spent = sum(share.seconds for share in found.shares)
    if plan.mode is Mode.CANARY and len(found.shares) > len(_FASTER_STEPS) - 1:
        other = estimate(msgspec.structs.replace(plan, shares=_FASTER_STEPS), found.traffic)
        saved = spent - sum(share.seconds for share in other.shares)
        if saved > 0.1 * spent and other.seconds is not None:
            steps = ",".join(f"{100 * share:g}" for share in _FASTER_STEPS)
            ways.append(f"--steps {steps}, {duration(saved)} less")
    if METRICS[found.by].kind == "log_mean":
        effects = dict(plan.gate.get("effects") or {})
        known = getattr(gate_spec_of(plan).effects, found.by)
        effects[found.by] = min(0.9, _COARSER * known)
        other = estimate(msgspec.structs.replace(plan, gate={**plan.gate, "effects": effects}), found.traffic)
        if other.requests is not None and (found.requests is None or other.requests < 0.8 * found.requests):
            ways.append(
                f"--gate with effects: {{{found.by}: {effects[found.by]:g}}}, twice as much as {known:g}: a pass after "
                f"some {other.requests:,} requests"
            )
    if found.requests is not None and found.requests > found.max_requests:
        ways.append(f"--max-requests {found.requests}, which a pass takes")
    return ways


def _compared(plan: Plan, share: float) -> float:
    """Return the part of all requests that each arm has, of those that are compared (`clients.rollout.traffic`)."""
    return share if plan.mode is Mode.SHADOW or share == 1 else min(share, 1 - share)


def _sample(traffic: SeenTraffic, part: float, spec: GateSpec) -> Sample:
    """Return what a gate would have seen of equal releases of that traffic, after some requests.

    Args:
        part: part of all requests that each arm has.
    """
    # Of a time in which there are many blocks: the first has no end yet, and the forecast takes them for even.
    some = max(_SOME, FADES * spec.fade_s * traffic.per_s * part)
    num, weight = np.array([some, some]), some / 2
    seconds = some / (traffic.per_s * part)
    block_s = max(spec.fade_s / BLOCKS_PER_FADE, seconds * BLOCK_REQUESTS / some)
    num_blocks = 1 + seconds / block_s
    # The blocks of requests that are independent of each other: metrics do not tell of more.
    pairs = num_blocks / np.exp2(1 + np.arange(math.floor(math.log2(num_blocks))))
    waited = {name: 0.0 for name, metric in METRICS.items() if metric.kind == "share" and not metric.is_optional}
    rates = waited | dict(traffic.shares)
    return Sample(
        num_requests=num,
        times=Times(np.array(seconds), np.array(num_blocks)),
        levels={
            name: (Level(num[0], np.array(one.mean)), Level(num[1], np.array(one.mean)))
            for name, one in traffic.spreads.items()
        },
        differences={
            name: Differences(np.array(0.0), np.array(weight / max(one.sd, 1e-3) ** 2), pairs, pairs)
            for name, one in traffic.spreads.items()
        },
        counts={name: Counts(rate * num, num) for name, rate in rates.items()},
    )
