# SPDX-License-Identifier: Apache-2.0
"""For each alert what Prometheus would scrape before, during and after its cause, as unit tests for promtool.

In each case the alert is silent first, on data that is nearly as bad; then it fires, with these labels and texts; then
its cause ends, and it is resolved.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from observability.rules.objectives import Objectives
from observability.rules.rule_files import Alert, Group

Phases = tuple[tuple[float, int], ...]  # (value, or increase a minute; minutes)


@dataclass(frozen=True, kw_only=True)
class Case:
    """Times are minutes; values are one a minute."""

    alert: str
    series: Mapping[str, str]
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)
    silent_at: int = 19
    fires_at: int = 45
    resolved_at: int = 65


def gauge(*phases: tuple[float | None, int]) -> str:
    """Values in promtool's notation; None: nothing was scraped."""
    return " ".join(f"_x{n}" if value is None else f"{value:g}x{n - 1}" for value, n in phases)


def counter(*phases: tuple[float, int]) -> str:
    """As `gauge`, of increases a minute."""
    text, total = [], 0.0
    for index, (increase, n) in enumerate(phases):
        first = total + (increase if index else 0.0)
        text.append(f"{first:.12g}{increase:+.12g}x{n - 1}")
        total = first + increase * (n - 1)
    return " ".join(text)


def requests(*, good: Phases, bad: Phases, model: str = "ensemble", version: str = "1") -> dict[str, str]:
    """Requests a minute that ended well and in an error."""
    labels = f'model="{model}",version="{version}",instance="a:8002"'
    return {
        f'trireme_requests_total{{{labels},finish_reason="length"}}': counter(*good),
        f'trireme_requests_total{{{labels},finish_reason="error"}}': counter(*bad),
    }


def histogram(
    name: str, bounds: tuple[float, float], *, fast: Phases, slow: Phases, model: str = "ensemble", version: str = "1"
) -> dict[str, str]:
    """Observations a minute: the fast ones are below the first bound, the slow ones between the two."""
    both = tuple((a + b, n) for (a, n), (b, _) in zip(fast, slow, strict=True))
    labels = f'model="{model}",version="{version}",instance="a:8002"'
    return {
        f'{name}_bucket{{{labels},le="{bounds[0]:g}"}}': counter(*fast),
        f'{name}_bucket{{{labels},le="{bounds[1]:g}"}}': counter(*both),
        f'{name}_bucket{{{labels},le="+Inf"}}': counter(*both),
        f"{name}_count{{{labels}}}": counter(*both),
    }


def promtool_tests(cases: Iterable[Case], groups: Sequence[Group], *, rule_files: tuple[str, ...]) -> dict[str, object]:
    """The document that `promtool test rules` reads. Args: `groups`: in the order in which they are evaluated."""
    by_name = {rule.name: rule for group in groups for rule in group.rules if isinstance(rule, Alert)}
    return {
        "rule_files": list(rule_files),
        "evaluation_interval": "1m",
        "group_eval_order": [group.name for group in groups],
        "tests": [_test(case, by_name[case.alert]) for case in cases],
    }


def _test(case: Case, alert: Alert) -> dict[str, object]:
    fired = {
        "exp_labels": {"severity": alert.severity, **case.labels},
        "exp_annotations": {
            "summary": case.summary,
            "description": case.description,
            "runbook_url": alert.runbook_url,
        },
    }
    times = {case.silent_at: [], case.fires_at: [fired], case.resolved_at: []}
    return {
        "name": f"{case.alert}: silent, firing, resolved",
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in case.series.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": case.alert, "exp_alerts": expected}
            for minute, expected in times.items()
        ],
    }


def is_default(objectives: Objectives) -> bool:
    """The cases are worked out for the defaults; other thresholds need other data."""
    return objectives == Objectives()
