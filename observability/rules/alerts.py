# SPDX-License-Identifier: Apache-2.0
"""The alerts, in the groups of the rule file."""

from observability.rules.gateway_alerts import gateway_alerts
from observability.rules.latency_error_alerts import latency_error_alerts
from observability.rules.objectives import Objectives
from observability.rules.rule_files import Group
from observability.rules.server_alerts import server_alerts


def alert_groups(objectives: Objectives) -> tuple[Group, ...]:
    """Return the groups of alerts, for rules that are loaded beside the recording rules."""
    return (
        Group(name="trireme-service-alerts", rules=latency_error_alerts(objectives)),
        Group(name="trireme-platform-alerts", rules=server_alerts(objectives)),
        Group(name="trireme-gateway-alerts", rules=gateway_alerts(objectives)),
    )
