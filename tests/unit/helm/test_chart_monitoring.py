# SPDX-License-Identifier: Apache-2.0
"""The chart's objects for prometheus-operator and Grafana: targets, labels, and the files as they are."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import Documents, needs_chart, of_kind, render, wrong
from chart_values import ENVOY, server, values
from monitoring_structures import PodMonitor, PrometheusRule
from prometheus_here import FILES, needs_prometheus, run
from pydantic import ValidationError

pytestmark = [pytest.mark.slow, needs_chart]

ALL = {
    "podMonitor": {"enabled": True, "interval": "10s"},
    "rules": {"enabled": True},
    "dashboards": {"enabled": True},
    "labels": {"release": "kube-prometheus-stack"},
}
KINDS = {"PodMonitor", "PrometheusRule"}


def rendered(*, name: str = "chat", **more: Any) -> Documents:
    """With all of it, unless `more` says otherwise."""
    servers = {"chat": server(), "big": server(nodes=2), "chat-2": server(release=2, stable="chat")}
    return render(values(servers, **{"monitoring": ALL, "envoy": ENVOY, **more}), name=name)


def test_by_default_there_is_none_of_it() -> None:
    documents = rendered(monitoring={})
    assert not KINDS & {document["kind"] for document in documents}
    assert not [each for each in of_kind(documents, "ConfigMap") if "grafana_dashboard" in each["metadata"]["labels"]]


def test_the_operator_takes_what_is_rendered() -> None:
    documents = rendered()
    for document in of_kind(documents, "PodMonitor"):
        PodMonitor.model_validate(document)
    [rules] = of_kind(documents, "PrometheusRule")
    PrometheusRule.model_validate(rules)
    assert wrong(documents, version="1.30") == wrong(documents, version="1.36") == {}


def test_what_the_operator_does_not_know_is_found() -> None:
    [servers, _] = of_kind(rendered(), "PodMonitor")
    servers["spec"]["podMetricsEndpoints"][0]["scrapeInterval"] = "10s"
    with pytest.raises(ValidationError, match="scrapeInterval"):
        PodMonitor.model_validate(servers)


def test_all_have_the_labels_that_prometheus_and_grafana_select_by() -> None:
    documents = [document for document in rendered() if document["kind"] in KINDS]
    documents += [each for each in of_kind(rendered(), "ConfigMap") if "-dashboard-" in each["metadata"]["name"]]
    assert len(documents) == 2 + 1 + 4
    for document in documents:
        assert document["metadata"]["labels"]["release"] == "kube-prometheus-stack"


def pods_with_port(documents: Documents, port: str) -> list[dict[str, str]]:
    """Return the labels of pods that have the port."""
    templates = [document["spec"]["template"] for document in of_kind(documents, "Deployment")]
    for group in of_kind(documents, "LeaderWorkerSet"):
        templates += [group["spec"]["leaderWorkerTemplate"][f"{role}Template"] for role in ("leader", "worker")]
    found = []
    for template in templates:
        ports = [each for container in template["spec"]["containers"] for each in container.get("ports", [])]
        if port in {each["name"] for each in ports}:
            found.append(template["metadata"]["labels"])
    return found


def test_exactly_the_pods_that_have_metrics_are_scraped() -> None:
    documents = rendered()
    servers, envoy = of_kind(documents, "PodMonitor")
    for monitor, port, num_kinds in ((servers, "metrics", 3), (envoy, "operations", 1)):
        [endpoint] = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == port
        assert endpoint["interval"] == "10s"
        found = pods_with_port(documents, port)
        assert len(found) == num_kinds, "of a group only the leader"
        for labels in found:
            assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert envoy["spec"]["podMetricsEndpoints"][0]["path"] == "/stats/prometheus"
    assert "/stats/prometheus" in next(
        each["data"]["envoy.yaml"] for each in of_kind(documents, "ConfigMap") if "envoy.yaml" in each["data"]
    )


def test_each_server_has_the_name_of_its_service_which_no_other_installation_has() -> None:
    documents = rendered(name="prod")
    relabelings = of_kind(documents, "PodMonitor")[0]["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert {"targetLabel": "job", "replacement": "trireme"} in relabelings
    named = {rule["regex"]: rule["replacement"] for rule in relabelings if rule["targetLabel"] == "service"}
    services = {
        service["metadata"]["labels"]["trireme/server"]: service["metadata"]["name"]
        for service in of_kind(documents, "Service")
        if "trireme/server" in service["metadata"]["labels"] and service["spec"].get("clusterIP") != "None"
    }
    assert named == services == {"chat": "prod-chat", "big": "prod-big", "chat-2": "prod-chat-2"}


def test_without_envoy_nobody_looks_for_it() -> None:
    assert [each["metadata"]["name"] for each in of_kind(rendered(envoy={}), "PodMonitor")] == ["chat"]


@needs_prometheus
def test_the_rules_are_those_of_the_files(tmp_path: Path) -> None:
    [document] = of_kind(rendered(), "PrometheusRule")
    files = [FILES / "prometheus" / name for name in ("recording_rules.yml", "alert_rules.yml")]
    groups = [group for file in files for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]]
    assert document["spec"] == {"groups": groups}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document["spec"]))
    assert "SUCCESS" in run("promtool", "check", "rules", "--lint=all", "--lint-fatal", tmp_path / "rules.yml")


@pytest.mark.parametrize("count", [3, pytest.param(None, marks=pytest.mark.soak)], ids=["some", "all"])
@needs_prometheus
def test_the_rendered_rules_pass_the_cases_of_the_files(tmp_path: Path, count: int | None) -> None:
    """The rules of the files, which are the same, pass them all in `test_alert_rules`."""
    [document] = of_kind(rendered(), "PrometheusRule")
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(document["spec"]))
    cases = yaml.safe_load((FILES / "prometheus/alert_rules_test.yml").read_text(encoding="utf-8"))
    chosen = random.Random(1).sample(cases["tests"], count) if count else cases["tests"]
    (tmp_path / "test.yml").write_text(yaml.safe_dump(cases | {"rule_files": ["rules.yml"], "tests": chosen}))
    assert "SUCCESS" in run("promtool", "test", "rules", "test.yml", folder=tmp_path)


def test_each_dashboard_is_its_file() -> None:
    found = [each for each in of_kind(rendered(), "ConfigMap") if "grafana_dashboard" in each["metadata"]["labels"]]
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in found} == {"1"}
    data = {name: text for each in found for name, text in each["data"].items()}
    files = {path.name: path.read_text(encoding="utf-8") for path in (FILES / "dashboards").glob("*.json")}
    assert {name: json.loads(text) for name, text in data.items()} == {
        name: json.loads(text) for name, text in files.items()
    }
    assert all(len(text) < 1_000_000 for text in data.values()), "a ConfigMap holds a megabyte"
