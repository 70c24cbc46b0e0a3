# SPDX-License-Identifier: Apache-2.0
"""The generated rule files under helm/trireme/files, by their path there, and the rules' tests."""

import dataclasses

from observability.rules.alerts import alert_groups
from observability.rules.objectives import Objectives
from observability.rules.recording import recording_groups
from observability.rules.rule_files import RUNBOOKS, Alert, Group, rule_file
from trireme.base.project_files import project_file

RECORDING_RULES = "prometheus/recording_rules.yml"
ALERT_RULES = "prometheus/alert_rules.yml"
ALERT_TESTS = "prometheus/alert_rules_test.yml"  # written by hand, in promtool's own words
_TESTS = project_file("helm/trireme/files") / ALERT_TESTS


def rule_files(objectives: Objectives, *, runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return the text of every rule file by its path, and of the rules' tests.

    The tests are left out unless the thresholds are those that the tests' data is made for.
    """
    alerts = tuple(_with_runbooks(group, runbooks) for group in alert_groups(objectives))
    files = {RECORDING_RULES: rule_file(recording_groups(objectives)), ALERT_RULES: rule_file(alerts)}
    if objectives == Objectives():
        files[ALERT_TESTS] = _TESTS.read_text(encoding="utf-8").replace(RUNBOOKS, runbooks)
    return files


def _with_runbooks(group: Group, runbooks: str) -> Group:
    rules = (dataclasses.replace(rule, runbooks=runbooks) if isinstance(rule, Alert) else rule for rule in group.rules)
    return dataclasses.replace(group, rules=tuple(rules))
