# SPDX-License-Identifier: Apache-2.0
"""The alerts about gateways ask for metrics and labels that a gateway has."""

import re

import pytest

from clients.openai_api.answer_deltas import Usage
from gateway.gateway_metrics import GatewayMetrics
from gateway.request_watch import RequestWatch
from observability.rules.gateway_alerts import gateway_alerts
from observability.rules.objectives import Objectives
from observability.rules.rule_files import Alert

ALERTS = gateway_alerts(Objectives())


@pytest.fixture(scope="module")
def page() -> str:
    metrics = GatewayMetrics()
    metrics.watch_ledger(lambda: 0)
    metrics.note_error("unavailable")
    metrics.note_fallback("large", "small")
    metrics.note_move(0.1)
    metrics.note_begin()
    watch = RequestWatch()
    watch.end()
    metrics.note_end("chat", "large", watch, Usage())
    return metrics.page().decode()


@pytest.mark.parametrize("alert", ALERTS, ids=[alert.name for alert in ALERTS])
def test_each_metric_is_one_of_a_gateway_and_has_the_labels(alert: Alert, page: str) -> None:
    found = re.findall(r"\b((?:trireme_gateway|gen_ai)_\w+?)(?:\{([^}]*)\})?[\[ ]", alert.expr)
    names = {(name, label) for name, labels in found for label in re.findall(r"(\w+)=", labels) or [""]}
    metrics = {(name, label) for name, label in names if re.search(rf"^{name}[{{ ]", page, re.MULTILINE)}
    summed = {"gen_ai_operation_name", "gen_ai_request_model"}  # labels
    assert {name for name, _ in names} - summed == {name for name, _ in metrics}
    assert metrics
    for name, label in metrics:
        assert not label or re.search(rf'^{name}{{.*\b{label}="', page, re.MULTILINE)
