# SPDX-License-Identifier: Apache-2.0
"""All alerts, in the groups of the rule file."""

from observability.objectives import Objectives
from observability.platform_alerts import platform_alerts
from observability.rules import Group
from observability.service_alerts import service_alerts


def alert_groups(objectives: Objectives) -> tuple[Group, ...]:
    """For rules that are loaded beside the recording rules."""
    return (
        Group(name="trireme-service-alerts", rules=service_alerts(objectives)),
        Group(name="trireme-platform-alerts", rules=platform_alerts(objectives)),
    )
