# SPDX-License-Identifier: Apache-2.0
"""Every alert fires when it should, and only then, by Prometheus' own tool; and says what to do."""

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_here import FILES, ROOT, needs_prometheus, run

from documents.check_links import anchors
from ensemble_configs.spec.admission_spec import SloSpec
from observability.files import ALERT_RULES, ALERT_TESTS, RECORDING_RULES, rule_files
from observability.observe_commands import generated_files
from observability.rules.alerts import alert_groups
from observability.rules.objectives import Objectives, objectives_of
from observability.rules.rule_files import Alert
from observability.rules.shortened import shortened
from trireme.base.errors import SpecError

pytestmark = pytest.mark.slow

ALERTS = [rule for group in alert_groups(Objectives()) for rule in group.rules if isinstance(rule, Alert)]
NAMES = [alert.name for alert in ALERTS]


@pytest.mark.parametrize(("name", "text"), generated_files(Objectives()).items(), ids=str)
def test_the_committed_files_are_those_that_are_generated(name: str, text: str) -> None:
    assert (FILES / name).read_text(encoding="utf-8") == text, "run make observe-files"


@needs_prometheus
def test_prometheus_takes_the_rules_and_the_configurations() -> None:
    assert "SUCCESS" in run("promtool", "check", "rules", "--lint=all", "--lint-fatal", *map(Path, RULES))
    assert "SUCCESS" in run("promtool", "check", "config", "prometheus.yml")
    assert "SUCCESS" in run("amtool", "check-config", FILES / "alertmanager/alertmanager.yml")


RULES = [Path(name).name for name in (RECORDING_RULES, ALERT_RULES)]


@pytest.mark.soak
@needs_prometheus
def test_every_alert_is_silent_fires_and_is_resolved_beside_all_others() -> None:
    assert "SUCCESS" in run("promtool", "test", "rules", "alert_rules_test.yml")


@needs_prometheus
def test_every_alert_is_silent_fires_and_is_resolved_in_promtool(tmp_path: Path) -> None:
    """By itself, with what is recorded for it: promtool evaluates every rule that it is given at every minute."""
    written = [write_cases(name, tmp_path) for name in NAMES]
    said = run("promtool", "test", "rules", *written, folder=tmp_path)
    assert said.count("SUCCESS") == len(NAMES)


def write_cases(name: str, folder: Path) -> str:
    """Write the cases of an alert beside the rules that it needs, in the order of the files."""
    groups = [group for file in (RECORDING_RULES, ALERT_RULES) for group in groups_of(file)]
    kept = needed_by(name, [rule for group in groups for rule in group["rules"]])
    groups = [group | {"rules": [rule for rule in group["rules"] if name_of(rule) in kept]} for group in groups]
    groups = [group for group in groups if group["rules"]]
    (folder / f"{name}.rules.yml").write_text(dumped({"groups": groups}))
    document = read(ALERT_TESTS)
    of_it = [each for each in document["tests"] if {one["alertname"] for one in each["alert_rule_test"]} == {name}]
    order = [group["name"] for group in groups]
    more = {"rule_files": [f"{name}.rules.yml"], "group_eval_order": order, "tests": of_it}
    (folder / f"{name}.yml").write_text(dumped(document | more))
    assert of_it
    return f"{name}.yml"


def needed_by(name: str, rules: list[dict[str, Any]]) -> set[str]:
    """Return an alert, and all that is recorded for it, directly or not."""
    words: dict[str, set[str]] = {name_of(rule): set() for rule in rules}
    for rule in rules:
        words[name_of(rule)] |= set(re.findall(r"[\w:]+", rule["expr"]))
    kept = {name}
    while more := {word for each in kept for word in words[each] & words.keys()} - kept:
        kept |= more
    return kept


def name_of(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def groups_of(file: str) -> list[dict[str, Any]]:
    return list(read(file)["groups"])


def dumped(value: Any) -> str:
    return str(yaml.dump(value, Dumper=yaml.CSafeDumper))


@cache
def read(file: str) -> dict[str, Any]:
    return dict(yaml.load((FILES / file).read_text(encoding="utf-8"), yaml.CSafeLoader))


def cases() -> dict[str, list[list[Any]]]:
    """Return the expected alerts of each alert's tests, by time and in order, read from the file."""
    found: dict[str, list[list[Any]]] = {name: [] for name in NAMES}
    for test in read(ALERT_TESTS)["tests"]:
        for each in test["alert_rule_test"]:
            found[each["alertname"]].append(each["exp_alerts"])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_no_alert_is_without_a_case_of_silence_of_fire_and_of_its_end(name: str) -> None:
    expected = [bool(alerts) for alerts in cases()[name]]
    assert expected
    assert expected == [False, True, False] * (len(expected) // 3)


def test_the_tests_evaluate_every_group_in_the_files_order() -> None:
    order = read(ALERT_TESTS)["group_eval_order"]
    assert order == [group["name"] for file in (RECORDING_RULES, ALERT_RULES) for group in groups_of(file)]


@pytest.mark.soak
@needs_prometheus
def test_promtool_notices_every_alert_that_never_fires(tmp_path: Path) -> None:
    for file in (RECORDING_RULES, ALERT_TESTS):
        shutil.copy(FILES / file, tmp_path)
    rules = yaml.safe_load((FILES / ALERT_RULES).read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            rule["expr"] = f"({rule['expr']}) and vector(0) > 1"
    (tmp_path / "alert_rules.yml").write_text(yaml.safe_dump(rules))
    with pytest.raises(AssertionError, match="FAILED") as failed:
        run("promtool", "test", "rules", "alert_rules_test.yml", folder=tmp_path)
    assert set(re.findall(r"alertname: (\w+)", str(failed.value))) == set(NAMES)


@pytest.mark.parametrize("alert", ALERTS, ids=NAMES)
def test_every_alert_tells_its_value_and_leads_to_a_heading_that_says_what_to_do(alert: Alert) -> None:
    path, _, anchor = alert.runbook_url.partition("#")
    text = (ROOT / path).read_text(encoding="utf-8")
    assert anchor in anchors(text)
    body = re.split(rf"^## {alert.name}$", text, flags=re.MULTILINE)[1].partition("\n## ")[0]
    assert len(body.split()) > 15
    if alert.name not in {"TriremeEngineDead", "TriremeServerDown", "TriremeNoData"}:  # there is nothing to measure
        assert "$value" in alert.description


def test_a_deployments_slo_sets_the_thresholds() -> None:
    objectives = objectives_of(SloSpec(ttft_ms=400, tpot_ms=50, availability=0.999))
    files = rule_files(objectives, runbooks="https://wiki.example/runbooks")
    rules = files[ALERT_RULES]
    assert "p99_5m > 0.4\n" in rules
    assert "p99_5m > 0.05\n" in rules
    assert "error_ratio_rate5m > 0.001\n" in rules
    assert "https://wiki.example/runbooks#triremenodata" in rules
    assert 'le="0.25"' in files[RECORDING_RULES], "0.4 s is no bound of the histogram: the next one below, to be strict"
    assert ALERT_TESTS not in files, "its data is for the default thresholds"


def test_a_budget_that_could_not_burn_so_fast_is_burnt_when_nearly_all_fails() -> None:
    rules = rule_files(objectives_of(SloSpec(availability=0.9)))[ALERT_RULES]
    assert 'ratio_rate1h{slo="availability"} > 0.9\n' in rules
    assert 'ratio_rate6h{slo="availability"} > 0.6\n' in rules


@pytest.mark.parametrize(
    ("slo", "said"),
    [
        (SloSpec(ttft_ms=60_000), r"slo\.ttft_ms is 60000.*below 40000, where its histogram ends"),
        (SloSpec(tpot_ms=2500), r"slo\.tpot_ms is 2500.*below 2500, where its histogram ends"),
        (SloSpec(availability=0.9999999), r"slo\.availability is 0\.9999999.*below 0\.99999,"),
    ],
)
def test_a_target_that_no_alert_could_judge_is_refused(slo: SloSpec, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        objectives_of(slo)


def test_a_minute_of_the_rules_becomes_a_second_and_nothing_else_changes() -> None:
    text = (FILES / ALERT_RULES).read_text(encoding="utf-8") + (FILES / RECORDING_RULES).read_text(
        encoding="utf-8"
    ).replace("groups:\n", "")
    before = {rule.get("alert") or rule["record"] + str(rule.get("labels")): rule for rule in rules_of(text)}
    after = {rule.get("alert") or rule["record"] + str(rule.get("labels")): rule for rule in rules_of(shortened(text))}
    assert before.keys() == after.keys()
    assert after["TriremeTtftP99High"] == before["TriremeTtftP99High"] | {"for": "5000ms"}
    assert "[30000ms]" in after["TriremeGpuIdle"]["expr"]
    assert "rate(trireme_requests_total[360000ms])" in str(
        after["slo:trireme_bad_requests:ratio_rate6h{'slo': 'availability'}"]
    )
    assert not re.search(r"\[\d+[mhd]\]|offset \d+[mhd]\b", shortened(text))
    assert "offset 5000ms" in after["TriremeQueueGrowing"]["expr"]


def rules_of(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
