# SPDX-License-Identifier: Apache-2.0
"""The generated files under helm/trireme/files, by their path there."""

import dataclasses
from pathlib import Path

from observability.rules.alert_cases import is_default, promtool_tests
from observability.rules.alerts import alert_groups
from observability.rules.latency_error_cases import SERVICE_CASES
from observability.rules.objectives import Objectives
from observability.rules.recording import recording_groups
from observability.rules.rule_files import RUNBOOKS, Alert, Group, rule_file, yaml_text
from observability.rules.server_cases import PLATFORM_CASES

RECORDING_RULES = "prometheus/recording_rules.yml"
ALERT_RULES = "prometheus/alert_rules.yml"
ALERT_TESTS = "prometheus/alert_rules_test.yml"


def rule_files(objectives: Objectives, *, runbooks: str = RUNBOOKS) -> dict[str, str]:
    """Return the text of every rule file by its path, and of the rules' tests.

    The tests are left out unless the thresholds are those that the tests' data is made for.
    """
    records = recording_groups(objectives)
    alerts = tuple(_with_runbooks(group, runbooks) for group in alert_groups(objectives))
    files = {RECORDING_RULES: rule_file(records), ALERT_RULES: rule_file(alerts)}
    if is_default(objectives):
        names = tuple(Path(name).name for name in files)
        tests = promtool_tests((*SERVICE_CASES, *PLATFORM_CASES), (*records, *alerts), rule_files=names)
        files[ALERT_TESTS] = yaml_text(tests)
    return files


def _with_runbooks(group: Group, runbooks: str) -> Group:
    rules = (dataclasses.replace(rule, runbooks=runbooks) if isinstance(rule, Alert) else rule for rule in group.rules)
    return dataclasses.replace(group, rules=tuple(rules))
