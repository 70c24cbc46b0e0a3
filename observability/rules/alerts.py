# SPDX-License-Identifier: Apache-2.0
"""The alerts, in the groups of the rule file."""

from observability.rules.objectives import Objectives
from observability.rules.platform_alerts import platform_alerts
from observability.rules.rule_files import Group
from observability.rules.service_alerts import service_alerts


def alert_groups(objectives: Objectives) -> tuple[Group, ...]:
    """Return the groups of alerts, for rules that are loaded beside the recording rules."""
    return (
        Group(name="trireme-service-alerts", rules=service_alerts(objectives)),
        Group(name="trireme-platform-alerts", rules=platform_alerts(objectives)),
    )
