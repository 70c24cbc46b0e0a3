# SPDX-License-Identifier: Apache-2.0
"""Unit tests of alerts for promtool: what Prometheus would scrape before, during and after an alert's cause.

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
    """A test of an alert; times are minutes, and values are one a minute."""

    alert: str
    series: Mapping[str, str]
    summary: str
    description: str
    labels: Mapping[str, str] = field(default_factory=dict)
    silent_at: int = 19
    fires_at: int = 45
    resolved_at: int = 65


def gauge(*phases: tuple[float | None, int]) -> str:
    """Return a gauge in promtool's notation, from values and how long each lasts; None: nothing was scraped."""
    return " ".join(f"_x{n}" if value is None else f"{value:g}x{n - 1}" for value, n in phases)


def counter(*phases: tuple[float, int]) -> str:
    """Return a counter in promtool's notation, from increases a minute and how long each lasts."""
    text, total = [], 0.0
    for index, (increase, n) in enumerate(phases):
        first = total + (increase if index else 0.0)
        text.append(f"{first:.12g}{increase:+.12g}x{n - 1}")
        total = first + increase * (n - 1)
    return " ".join(text)


def requests(*, good: Phases, bad: Phases, model: str = "ensemble", version: str = "1") -> dict[str, str]:
    """Return the series of requests a minute that ended well, and in an error."""
    labels = f'model="{model}",version="{version}",instance="a:8002"'
    return {
        f'trireme_requests_total{{{labels},finish_reason="length"}}': counter(*good),
        f'trireme_requests_total{{{labels},finish_reason="error"}}': counter(*bad),
    }


def histogram(
    name: str, bounds: tuple[float, float], *, fast: Phases, slow: Phases, model: str = "ensemble", version: str = "1"
) -> dict[str, str]:
    """Return the series of observations a minute: fast ones below the first bound, slow ones between the two."""
    both = tuple((a + b, n) for (a, n), (b, _) in zip(fast, slow, strict=True))
    labels = f'model="{model}",version="{version}",instance="a:8002"'
    return {
        f'{name}_bucket{{{labels},le="{bounds[0]:g}"}}': counter(*fast),
        f'{name}_bucket{{{labels},le="{bounds[1]:g}"}}': counter(*both),
        f'{name}_bucket{{{labels},le="+Inf"}}': counter(*both),
        f"{name}_count{{{labels}}}": counter(*both),
    }


def promtool_tests(cases: Iterable[Case], groups: Sequence[Group], *, rule_files: tuple[str, ...]) -> dict[str, object]:
    """Return the document that `promtool test rules` reads.

    Args:
        cases: the tests.
        groups: the rules, in the order in which they are evaluated.
        rule_files: paths of the rule files, from the document's folder.
    """
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
    """Return whether these are the default objectives, for which the cases are worked out; others need other data."""
    return objectives == Objectives()
