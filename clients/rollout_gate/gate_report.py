# SPDX-License-Identifier: Apache-2.0
"""The report of the gate in JSON's types, and the reason of a verdict in one sentence."""

import math
from collections.abc import Sequence

import numpy as np

from clients.rollout_gate.bounds import bounds_of
from clients.rollout_gate.findings import Finding, chances_of_groups, is_contradicted, worse_groups
from clients.rollout_gate.forecast import needed
from clients.rollout_gate.gate_spec import GateSpec
from clients.rollout_gate.metrics import LOGARITHMS, METRICS, alpha_of
from clients.rollout_gate.sample import Sample
from clients.rollout_gate.statistics.groups import group_name
from clients.rollout_gate.verdict import Look, Verdict, is_at_end

METHOD = (
    "Sequential tests, valid at every look: confidence sequences of mean logarithms at equal work, bounded, in "
    "blocks of time (Huber 1964; Howard et al. 2021; Waudby-Smith et al. 2024), averaged over how alike requests "
    "near in time may be (Meng 1994), with the variance over keys (Liang and Zeger 1986); bets on the arm of each "
    "event, or of each incident (Lindon and Malek 2022), bets on paired scores (Waudby-Smith and Ramdas 2024); the "
    "chance of a false alarm is split over the metrics."
)


def report_of(look: Look, sample: Sample, spec: GateSpec) -> dict[str, object]:
    """Return everything but the verdict, with one row for each metric that has been measured."""
    return {
        "requests": {"candidate": int(sample.num_requests[0]), "baseline": int(sample.num_requests[1])},
        "alpha": spec.alpha,
        "pass_alpha": spec.pass_alpha,
        "guards": [
            {"name": name, "limit": spec.guard_share, "is_over": bool(is_over)} for name, is_over in look.guards.items()
        ],
        "metrics": [_row(name, finding, sample, spec) for name, finding in look.findings.items()],
        "unmeasured": [name for name in METRICS if name not in look.findings],
        "method": METHOD,
    }


def _row(name: str, finding: Finding, sample: Sample, spec: GateSpec) -> dict[str, object]:
    metric = METRICS[name]
    to_go = needed(name, sample, spec)
    candidate, baseline = levels(name, sample)
    lower, upper = bounds_of(name, sample, spec)
    return {
        "name": name,
        "title": metric.title,
        "kind": metric.kind,
        "candidate": candidate,
        "baseline": baseline,
        "change": _change(name, _told(name, finding, sample, spec)),
        "lower": _change(name, lower),
        "upper": _change(name, upper),
        "effect": getattr(spec.effects, name),
        "alpha": alpha_of(name, spec),
        "is_worse": bool(finding.is_worse),
        "is_fine": bool(finding.is_fine),
        "is_optional": metric.is_optional,
        "needed_until_fail": to_go.until_fail,
        "needed_until_pass": to_go.until_pass,
        "needed_keys": to_go.keys,
        "groups": _worse_groups(name, sample, spec),
    }


def _worse_groups(name: str, sample: Sample, spec: GateSpec) -> dict[str, float]:
    """Return the change of each group that is worse, by the group's name."""
    if name not in sample.groups:
        return {}
    change = sample.groups[name].change
    return {
        group_name(int(group), sample.tenants): math.expm1(change[group])
        for group in np.flatnonzero(worse_groups(name, sample, spec))
    }


def levels(name: str, sample: Sample) -> tuple[float | None, float | None]:
    """Return a metric's level in the candidate's arm and in the baseline's.

    It is a geometric mean (milliseconds, tokens) or a share; a score has none.
    """
    if name in sample.levels:
        geometric = [math.exp(float(arm.mean)) if arm.num else None for arm in sample.levels[name]]
        return geometric[0], geometric[1]
    if name in sample.counts:
        counts = sample.counts[name]
        rates = [float(counts.events[arm] / counts.num[arm]) if counts.num[arm] else None for arm in (0, 1)]
        return rates[0], rates[1]
    return None, None


def _told(name: str, finding: Finding, sample: Sample, spec: GateSpec) -> float:
    # Of groups, the one that is likeliest worse.
    if name in sample.groups:
        return float(sample.groups[name].change[int(chances_of_groups(name, sample, spec).argmin())])
    change = sample.differences[name].change if name in sample.differences else None
    return float(finding.estimate if change is None else change)


def _change(name: str, value: float | None) -> float | None:
    # Of logarithms a share of the baseline's.
    if value is None or METRICS[name].kind not in LOGARITHMS:
        return value
    return math.expm1(value)


def reason_of(look: Look, sample: Sample, spec: GateSpec, verdict: Verdict) -> str:
    """Return why the verdict is what it is, the first reason first."""
    if verdict == "fail":
        return "; ".join(_reasons_to_fail(look, sample, spec))
    if verdict == "no data":
        missing = [arm for arm, num in zip(("candidate", "baseline"), sample.num_requests, strict=True) if num == 0]
        return f"no request of the {' or the '.join(missing)} has ended yet"
    if verdict == "pass":
        return f"no metric is worse by its effect size, proven on {int(sample.num_requests.min())} requests of each arm"
    open_ones = [
        name
        for name, metric in METRICS.items()
        if not metric.is_optional and not (name in look.findings and look.findings[name].is_fine)
    ]
    titles = ", ".join(METRICS[name].title for name in open_ones)
    keys = [needed(name, sample, spec).keys for name in open_ones if name in sample.levels]
    few = [num for num in keys if num is not None]
    too_few = f"; keys are too few for a pass, which takes some {max(few)}: split without a key" if few else ""
    unproven = f"nothing is proven yet about {titles}{_contradicted(open_ones, sample, spec)}"
    if is_at_end(sample, spec):
        return f"hold: after max_requests ({spec.max_requests}) {unproven}{too_few}"
    return f"{unproven}{too_few or _outlook(open_ones, sample, spec)}"


def _contradicted(open_ones: Sequence[str], sample: Sample, spec: GateSpec) -> str:
    """Return of which metrics the plain mean speaks against a pass."""
    found = {
        METRICS[name].title: _change(name, float(sample.plain[name].estimate))
        for name in open_ones
        if name in sample.plain and is_contradicted(name, sample, spec)
    }
    return "".join(
        f"; {title} {change:+.1%} on average, which stands against a pass" for title, change in found.items()
    )


def _reasons_to_fail(look: Look, sample: Sample, spec: GateSpec) -> list[str]:
    found = []
    for name, is_over in look.guards.items():
        if is_over:
            events, num = sample.counts[name]
            found.append(
                f"{METRICS[name].title}: {events[0]:.0f} of {num[0]:.0f}, over the guard of {spec.guard_share:.1%}"
            )
    for name, finding in look.findings.items():
        if not finding.is_worse:
            continue
        metric, change = METRICS[name], _change(name, _told(name, finding, sample, spec)) or 0.0
        if metric.kind == "groups":
            base = METRICS[name.removesuffix("_of_some")].title
            worse = _worse_groups(name, sample, spec).items()
            found += [f"{base} of {group} {of_it:+.1%}, worse than chance explains" for group, of_it in worse]
        elif metric.kind == "log_mean":
            found.append(f"{metric.title} {change:+.1%}, worse than chance explains")
        elif metric.kind == "share":
            candidate, baseline = levels(name, sample)
            found.append(f"{metric.title}: {candidate:.2%} against {baseline:.2%}, worse than chance explains")
        else:
            found.append(f"{metric.title} lower by {change:.3f}, more than chance explains")
    return found


def _outlook(open_ones: Sequence[str], sample: Sample, spec: GateSpec) -> str:
    known = [needed(name, sample, spec) for name in open_ones if name in sample.levels or name in sample.counts]
    sizes = [one.until_pass for one in known if one.until_pass is not None]
    if not sizes or len(sizes) < len(open_ones):  # there is one of which nothing can be said
        return ""
    return f"; a pass takes about {max(sizes)} requests of the candidate"
