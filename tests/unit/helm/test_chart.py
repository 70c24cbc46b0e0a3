# SPDX-License-Identifier: Apache-2.0
"""The chart over a matrix of values: valid everywhere, and whole in itself."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from chart_here import (
    CHART,
    ChartRefused,
    Documents,
    Values,
    lint,
    merged,
    needs_chart,
    of_kind,
    render,
    render_texts,
    wrong,
)
from chart_matrix import DEPLOYMENTS, SITES, combined, deployments, pods_of, selects, without_labels
from kubernetes_structures import BackendTlsPolicy, GrpcRoute, HttpRoute
from monitoring_structures import PodMonitor, PrometheusRule

pytestmark = [pytest.mark.slow, needs_chart]
VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36")


@pytest.fixture(scope="module")
def servers() -> dict[str, dict[str, Any]]:
    return deployments()


@pytest.mark.parametrize("site", SITES)
def test_all_that_is_made_is_valid_in_every_version(servers: Mapping[str, Values], site: str) -> None:
    found = {
        json.dumps(document, sort_keys=True): document
        for deployment in DEPLOYMENTS
        for document in render(combined(servers, deployment, site))
    }
    check_valid(list(found.values()), VERSIONS)


def check_valid(documents: Documents, versions: Sequence[str]) -> None:
    for version in versions:
        assert wrong(documents, version=version) == {}, version
    for document in documents:
        match document["kind"]:
            case "HTTPRoute":
                HttpRoute.model_validate(without_labels(document))
            case "BackendTLSPolicy":
                BackendTlsPolicy.model_validate(without_labels(document))
            case "GRPCRoute":
                GrpcRoute.model_validate(without_labels(document))
            case "PodMonitor":
                PodMonitor.model_validate(document)
            case "PrometheusRule":
                PrometheusRule.model_validate(document)


def test_every_template_makes_something(servers: Mapping[str, Values]) -> None:
    made = {
        path
        for deployment in DEPLOYMENTS
        for site in SITES
        for path in render_texts(combined(servers, deployment, site))
    }
    templates = {
        f"trireme/{path.relative_to(CHART)}"
        for path in (CHART / "templates").rglob("*")
        if path.suffix in (".yaml", ".txt")
    }
    assert made == templates


@pytest.mark.parametrize("count", [20, pytest.param(2000, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_any_values_together_make_what_is_valid_and_whole(servers: Mapping[str, Values], count: int) -> None:
    """Several sites at once, of any deployment; Helm may refuse them, by name."""
    rng = random.Random(8)
    num_rendered = 0
    for _ in range(count):
        deployment, sites = rng.choice(DEPLOYMENTS), rng.sample(sorted(SITES), rng.randint(2, 5))
        values = merged(combined(servers, deployment, sites[0]), *(SITES[site] for site in sites[1:]))
        try:
            documents = render(values)
        except ChartRefused as refused:
            if "scaling.office" not in str(refused):  # Kubernetes' own autoscaler has no hours
                raise
            continue
        num_rendered += 1
        check_valid(documents, (rng.choice(VERSIONS),))
        check_whole(documents)
        assert lint(values)["errors"] == []
    assert num_rendered > count / 2


@pytest.mark.parametrize(("deployment", "kind"), [("one", "Deployment"), ("nodes", "LeaderWorkerSet")])
def test_a_misspelt_field_would_be_found(servers: Mapping[str, Values], deployment: str, kind: str) -> None:
    [document] = of_kind(render(servers[deployment]), kind)
    document["spec"]["replica"] = document["spec"].pop("replicas")
    [found] = wrong([document], version="1.36").values()
    assert "'replica' was unexpected" in found


@pytest.mark.parametrize("site", SITES)
def test_all_that_is_named_is_there(servers: Mapping[str, Values], site: str) -> None:
    for deployment in DEPLOYMENTS:
        check_whole(render(combined(servers, deployment, site)))


def check_whole(documents: Documents) -> None:
    names = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert len(set(names)) == len(names)
    made = {name for kind, name in names if kind == "ConfigMap"}
    accounts = {name for kind, name in names if kind == "ServiceAccount"}
    pods = list(pods_of(documents))
    for pod in pods:
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
        mounted = {mount["name"] for container in containers for mount in container["volumeMounts"]}
        claimed = {
            claim["metadata"]["name"]
            for each in of_kind(documents, "StatefulSet")
            if each["spec"]["template"] is pod
            for claim in each["spec"]["volumeClaimTemplates"]
        }
        assert mounted == set(volumes) | claimed
        assert {volume["configMap"]["name"] for volume in volumes.values() if "configMap" in volume} <= made
        assert pod["spec"]["serviceAccountName"] in accounts
        for container in pod["spec"]["containers"]:
            ports = {port["name"] for port in container.get("ports", [])}
            probes = [container.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")]
            for probe in filter(None, probes):
                assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports
    for service in of_kind(documents, "Service"):
        [chosen] = {
            tuple(sorted(port["name"] for port in pod["spec"]["containers"][0]["ports"]))
            for pod in pods
            if selects(service["spec"]["selector"], pod)
        }
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(chosen)
    workloads = [*of_kind(documents, "Deployment"), *of_kind(documents, "StatefulSet")]
    for budget in (*of_kind(documents, "PodDisruptionBudget"), *workloads):
        assert any(selects(budget["spec"]["selector"]["matchLabels"], pod) for pod in pods)


@pytest.mark.parametrize("site", SITES)
def test_strict_lint_finds_nothing(servers: Mapping[str, Values], site: str) -> None:
    deployment = DEPLOYMENTS[list(SITES).index(site) % len(DEPLOYMENTS)]  # each comes, and each site
    assert lint(combined(servers, deployment, site))["errors"] == []


@pytest.mark.soak
def test_strict_lint_finds_nothing_of_any_deployment_at_any_site(servers: Mapping[str, Values]) -> None:
    for site in SITES:
        for deployment in DEPLOYMENTS:
            assert lint(combined(servers, deployment, site))["errors"] == [], f"{deployment}, {site}"


def test_without_servers_nothing_is_made() -> None:
    assert lint({})["errors"] == []
    assert render({}) == []
