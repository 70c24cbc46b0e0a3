# SPDX-License-Identifier: Apache-2.0
"""The chart's network policies, and its routes of the Gateway API."""

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chart_here import (
    IMAGES,
    NOTES,
    ChartRefused,
    Values,
    deployment_values,
    merged,
    needs_chart,
    of_kind,
    render,
    render_texts,
)
from chart_matrix import CANARY, CLIENTS, DEPLOYMENTS, SITES, combined, deployments, pods_of, selects, without_labels
from kubernetes_structures import BackendTlsPolicy, GrpcRoute, HttpRoute

from serving.triton.triton_api import CONTROL_KEY_HEADER

pytestmark = [pytest.mark.slow, needs_chart]


@pytest.fixture(scope="module")
def servers() -> dict[str, dict[str, Any]]:
    return deployments()


@pytest.mark.parametrize("site", [site for site in SITES if site != "no policies"])
def test_nobody_reaches_a_server_who_is_not_named(servers: Mapping[str, Values], site: str) -> None:
    for deployment in DEPLOYMENTS:
        documents = render(combined(servers, deployment, site))
        for pod in pods_of(documents):
            policies = [
                policy["spec"]
                for policy in of_kind(documents, "NetworkPolicy")
                if selects(policy["spec"]["podSelector"]["matchLabels"], pod)
            ]
            assert len(policies) == 1, pod["metadata"]["labels"]
            assert policies[0]["policyTypes"] == ["Ingress", "Egress"]
            for rule in policies[0].get("ingress") or []:
                assert rule["from"]  # without it everybody is let in
                assert rule.get("ports") or is_of_the_group(rule["from"], pod)


def is_of_the_group(peers: list[dict[str, Any]], pod: Mapping[str, Any]) -> bool:
    return len(peers) == 1 and selects(peers[0]["podSelector"]["matchLabels"], pod)


def test_with_envoy_only_envoy_reaches_the_servers(servers: Mapping[str, Values]) -> None:
    documents = render(combined(servers, "one", "envoy"))
    [to_servers] = [
        policy
        for policy in of_kind(documents, "NetworkPolicy")
        if policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "server"
    ]
    [rule] = to_servers["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "envoy"
    assert {port["port"] for port in rule["ports"]} == {"grpc", "http", "health"}


def test_a_rollout_elsewhere_reaches_a_server_that_loads_and_nobody_else_does(servers: Mapping[str, Values]) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "rollout"}}}]
    site = {"remoteControl": {"secret": "rollouts"}, "network": {"rollouts": peers}}
    documents = render(merged(combined(servers, "one", "plain"), site))
    [policy] = of_kind(documents, "NetworkPolicy")
    assert policy["spec"]["ingress"] == [{"from": peers, "ports": [{"port": "control"}, {"port": "grpc"}]}]
    [service] = [each for each in of_kind(documents, "Service") if each["metadata"]["name"].endswith("-control")]
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["clusterIP"] == "None", "each pod is reached, at the ports that its container has"
    assert [(port["name"], port["port"]) for port in service["spec"]["ports"]] == [("control", 8004), ("grpc", 8001)]
    [pod] = pods_of(documents)
    assert selects(service["spec"]["selector"], pod)
    [container] = pod["spec"]["containers"]
    options = container["command"]
    assert options[options.index("--remote-port") + 1] == "8004"
    assert {"name": "control", "containerPort": 8004} in container["ports"]
    [volume] = [each["secret"] for each in pod["spec"]["volumes"] if each["name"] == "remote-control"]
    assert volume["secretName"] == "rollouts"
    without = json.dumps(render(combined(servers, "one", "plain")))
    assert "--remote-port" not in without
    assert "-control" not in without


def test_names_are_asked_of_whom_the_site_says(servers: Mapping[str, Values]) -> None:
    """OpenShift's resolvers are called otherwise and listen at 5353."""
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}
    documents = render(merged(combined(servers, "one", "envoy"), {"network": {"dns": {"peers": [peer], "port": 5353}}}))
    policies = of_kind(documents, "NetworkPolicy")
    assert len(policies) == 2
    for policy in policies:
        to, ports = policy["spec"]["egress"][0]["to"], policy["spec"]["egress"][0]["ports"]
        assert to == [peer]
        assert [(port["port"], port["protocol"]) for port in ports] == [(5353, "UDP"), (5353, "TCP")]


def test_a_gateway_beside_envoy_reaches_the_servers_too(servers: Mapping[str, Values]) -> None:
    documents = render(merged(combined(servers, "one", "envoy"), SITES["gateway"]))
    [to_servers] = [
        policy
        for policy in of_kind(documents, "NetworkPolicy")
        if policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "server"
    ]
    [_, rule] = to_servers["spec"]["ingress"]
    assert rule == {"from": CLIENTS["clients"], "ports": [{"port": "grpc"}, {"port": "http"}]}


@pytest.mark.parametrize("kind", ["GRPCRoute", "HTTPRoute"])
def test_routes_give_the_candidate_its_weight_and_pins_what_they_name(servers: Mapping[str, Values], kind: str) -> None:
    documents = render(combined(servers, "canary", "gateway"))
    [route] = of_kind(documents, kind)
    by_pin = {
        pin_of(rule): {ref["name"]: ref.get("weight") for ref in rule["backendRefs"]} for rule in route["spec"]["rules"]
    }
    assert by_pin == {
        "candidate": {"chat-canary-chat-2": None},
        "stable": {"chat-canary-chat": None},
        None: {"chat-canary-chat": 7500, "chat-canary-chat-2": 2500},
    }


def test_a_pin_does_not_lead_to_another_model(tmp_path: Path) -> None:
    """Among gRPC routes that match, the one with most headers wins, then the older."""
    release = {"tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}
    models = [{"name": "chat", "other_releases": [{"release": 2, **release}], **release}, {"name": "code", **release}]
    (tmp_path / "pair.yaml").write_text(json.dumps({"name": "pair", "models": models}))
    documents = render(merged(deployment_values(tmp_path / "pair.yaml"), IMAGES, SITES["gateway"], CANARY))
    rules = [rule for route in of_kind(documents, "GRPCRoute") for rule in route["spec"]["rules"]]

    def chosen(**headers: str) -> set[str]:
        asked = {f"x-trireme-{name}": value for name, value in headers.items()}
        found = [
            (len(named), frozenset(ref["name"] for ref in rule["backendRefs"]))
            for rule in rules
            for match in rule["matches"]
            if (named := {h["name"]: h["value"] for h in match.get("headers", [])}).items() <= asked.items()
        ]
        [backends] = {backends for number, backends in found if number == max(found)[0]}
        return {name.removeprefix("chat-pair-") for name in backends}

    for pin in ("stable", "candidate"):
        assert chosen(model="code_ensemble", release=pin) == {"code"}
        assert (
            chosen(release=pin)
            == chosen(model="chat_ensemble", release=pin)
            == {"chat-2" if pin == "candidate" else "chat"}
        )
    assert chosen(model="code_ensemble") == {"code"}
    assert chosen() == chosen(model="chat_ensemble") == {"chat", "chat-2"}


def test_gateways_trust_the_servers_own_tls_by_a_policy_for_each_service(servers: Mapping[str, Values]) -> None:
    values = combined(servers, "canary", "gateway, TLS of Triton's own")
    documents = render(values)
    names = {service["metadata"]["name"] for service in of_kind(documents, "Service")}
    policies = of_kind(documents, "BackendTLSPolicy")
    found = {policy["spec"]["targetRefs"][0]["name"] for policy in policies}
    assert found == {"chat-canary-chat", "chat-canary-chat-2"}
    assert found <= names
    for policy in policies:
        parsed = BackendTlsPolicy.model_validate(without_labels(policy))
        assert parsed.api.endswith("/v1alpha3")
        assert parsed.spec.targets[0].section == "grpc"
        assert parsed.spec.validation.authorities[0].name == "triton-ca"
        assert parsed.spec.validation.hostname == "chat.models.svc"
    [notes] = [text for path, text in render_texts(values).items() if path.endswith(NOTES)]
    assert "spec.tls.backend.clientCertificateRef" in notes, "of mTLS"
    newer = merged(values, {"gatewayApi": {"backendTls": {"version": "v1"}}, "grpcTls": {"isMutual": False}})
    versions = {each["apiVersion"] for each in of_kind(render(newer), "BackendTLSPolicy")}
    assert versions == {"gateway.networking.k8s.io/v1"}
    assert not of_kind(render(combined(servers, "canary", "gateway")), "BackendTLSPolicy"), "without TLS there is none"


def test_a_server_with_many_models_has_several_routes_and_each_is_as_long_as_it_may_be(
    servers: Mapping[str, Values],
) -> None:
    more = [f"extra_{number}" for number in range(100)]
    documents = render(merged(combined(servers, "canary", "gateway"), {"servers": {"chat": {"extraModels": more}}}))
    divided = servers["canary"]["servers"]["chat-2"]["models"][0]["tritonNames"]
    for kind, structure in (("HTTPRoute", HttpRoute), ("GRPCRoute", GrpcRoute)):
        routes = of_kind(documents, kind)
        assert len({route["metadata"]["name"] for route in routes}) == len(routes) == 4
        for route in routes:
            structure.model_validate(without_labels(route))
        backends: dict[str, set[str]] = {}
        for rule in (rule for route in routes for rule in route["spec"]["rules"] if pin_of(rule) is None):
            for name in filter(None, map(model_of, rule["matches"])):
                assert name not in backends, "in one rule of one route"
                backends[name] = {ref["name"] for ref in rule["backendRefs"]}
        stable = {"chat-canary-chat"}
        both = stable | {"chat-canary-chat-2"}
        assert backends == dict.fromkeys(divided, both) | dict.fromkeys(more, stable)


def model_of(match: Mapping[str, Any]) -> str | None:
    """Whose requests it is for; none: those that name no model, or none that another match names."""
    if "path" in match:
        _, found, name = match["path"]["value"].partition("/v2/models/")
        return name if found else None
    named = {header["name"]: header["value"] for header in match.get("headers", [])}
    return named.get("x-trireme-model")


def test_no_route_leads_to_the_control_api(servers: Mapping[str, Values]) -> None:
    """A trace's settings lie below a model's name; the key is taken from whoever has it."""
    for deployment in DEPLOYMENTS:
        documents = render(combined(servers, deployment, "gateway"))
        for kind, prefix in (("HTTPRoute", ""), ("GRPCRoute", "triton-grpc-protocol-")):
            for rule in (rule for route in of_kind(documents, kind) for rule in route["spec"]["rules"]):
                assert {"remove": [f"{prefix}{CONTROL_KEY_HEADER}"]} in [
                    each.get("requestHeaderModifier") for each in rule["filters"]
                ]
        for route in of_kind(documents, "HTTPRoute"):
            for rule, path in itertools.product(route["spec"]["rules"], ("/v2/repository/index", "/v2/logging")):
                assert not any(path.startswith(match["path"]["value"]) for match in rule["matches"])


def pin_of(rule: Mapping[str, Any]) -> str | None:
    [pin] = {
        next((header["value"] for header in match.get("headers", []) if header["name"] == "x-trireme-release"), None)
        for match in rule["matches"]
    }
    return pin


def of_kv_events(tmp_path: Path) -> Values:
    """Return the values of a deployment that tells routers of its KV blocks."""
    (tmp_path / "told.yaml").write_text(
        "name: told\n"
        "tokenizer: {dir: /models/chat}\n"
        "engine: {provider: simulated, is_block_reuse: true}\n"
        'kv_events: {endpoint: "tcp://*:5557", replay_endpoint: "tcp://*:5558", server_name: "{address}:8000"}\n'
    )
    return deployment_values(tmp_path / "told.yaml")


def test_routers_reach_the_ports_of_kv_events_and_nobody_else_does(tmp_path: Path) -> None:
    values = of_kv_events(tmp_path)
    router = {"podSelector": {"matchLabels": {"app": "llm-d-router"}}}
    documents = render(merged(values, IMAGES, {"network": {"routers": [router]}}))
    [pod] = pods_of(documents)
    ports = {port["name"]: port["containerPort"] for port in pod["spec"]["containers"][0]["ports"]}
    assert (ports["kv-5557"], ports["kv-5558"]) == (5557, 5558)
    [headless] = [each for each in of_kind(documents, "Service") if each["metadata"]["name"].endswith("-pods")]
    assert {port["port"] for port in headless["spec"]["ports"]} >= {5557, 5558}
    [policy] = of_kind(documents, "NetworkPolicy")
    rules = [rule for rule in policy["spec"]["ingress"] if {"port": 5557} in rule["ports"]]
    assert rules == [{"from": [router], "ports": [{"port": 5557}, {"port": 5558}]}]
    [unnamed] = of_kind(render(merged(values, IMAGES)), "NetworkPolicy")
    assert not [rule for rule in unnamed["spec"].get("ingress") or [] if {"port": 5557} in rule.get("ports", ())]


@pytest.mark.parametrize(
    ("role", "said"), [("prefill", "is asked for no prompt"), ("decode", "computes all prompts itself")]
)
def test_a_server_that_reaches_no_other_role_is_warned_of(servers: Mapping[str, Values], role: str, said: str) -> None:
    site = {"servers": {"chat": {"role": role}}}
    values = merged(combined(servers, "one", "plain"), site)
    [notes] = [text for path, text in render_texts(values).items() if path.endswith(NOTES)]
    assert f"servers.chat has the role {role}, and network.otherRole is empty" in notes
    assert said in notes
    sites: list[Values] = [{"network": {"otherRole": [{"podSelector": {}}]}}, {"network": {"enabled": False}}]
    for quiet in sites:
        [notes] = [text for path, text in render_texts(merged(values, quiet)).items() if path.endswith(NOTES)]
        assert "otherRole" not in notes


def test_a_port_of_kv_events_that_is_another_of_the_pod_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChartRefused, match="server told tells KV events on port 5557, which is another"):
        render(merged(of_kv_events(tmp_path), IMAGES, {"ports": {"metrics": 5557}}))
