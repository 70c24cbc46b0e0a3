# SPDX-License-Identifier: Apache-2.0
"""Values that the chart refuses, each by name."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import (
    CHART,
    IMAGES,
    ChartRefused,
    Values,
    deployment_values,
    merged,
    needs_chart,
    render,
)
from chart_matrix import SITES, deployments

pytestmark = [pytest.mark.slow, needs_chart]


@pytest.fixture(scope="module")
def servers() -> dict[str, dict[str, Any]]:
    return deployments()


GATEWAY = {"gatewayApi": {"enabled": True, "gateways": [{"name": "models"}], "inferencePool": {"enabled": True}}}
GATES = {"enabled": True, "gateways": [{"name": "models"}]}
BAD: list[tuple[Values, str]] = [
    ({"sclaing": {}}, "additional properties 'sclaing' not allowed"),
    ({"ports": {"grpc": 70000}}, "at '/ports/grpc'"),
    ({"ports": {"grpc": 8000}}, "ports must differ"),
    ({"remoteControl": {"secret": "s", "port": 8001}}, "remoteControl.port 8001 is one of ports"),
    ({"defaultServer": "nobody"}, 'defaultServer is "nobody", and servers are chat, chat-2'),
    ({"defaultServer": "chat-2"}, 'defaultServer is "chat-2", a candidate itself'),
    ({"servers": {"chat": {"replicas": 0}}}, "at '/servers/chat/replicas'"),
    ({"servers": {"chat": {"nodes": "two"}}}, "at '/servers/chat/nodes'"),
    ({"servers": {"chat": {"memory": "8Gi"}}}, "additional properties 'memory' not allowed"),
    ({"servers": {"Chat": {"replicas": 1}}}, "Chat"),
    ({"image": {"digest": "latest"}}, "at '/image/digest'"),
    ({"image": {"digest": ""}}, "image.repository and image.digest are needed"),
    ({"envoy": {"enabled": True, "image": {"digest": ""}}}, "envoy.image.repository and envoy.image.digest are needed"),
    ({"releases": {"pull": {"enabled": True}}}, "at '/releases/pull/claim'"),
    ({"releases": {"pull": {"enabled": True, "claim": "r"}}}, "at '/releases/pull/cacheHostPath'"),
    ({"network": {"otherRole": [{"podSelector": {}}]}}, "network.otherRole opens every port, and no server here"),
    ({"servers": {"chat": {"role": "both"}}}, "at '/servers/chat/role'"),
    ({"podSecurity": {"user": 0}}, "at '/podSecurity/user'"),
    ({"grpcTls": {"directory": "/etc/tls"}}, "grpcTls.secret is missing"),
    ({"grpcTls": {"secret": "tls"}}, "the deployment has no triton.grpc_tls"),
    (
        {"grpcTls": {"directory": "/etc/tls", "secret": "tls"}, "envoy": {"enabled": True}},
        "grpcTls.serverName is missing",
    ),
    (
        {"grpcTls": {"directory": "/etc/tls", "secret": "tls"}, "gatewayApi": GATES},
        "grpcTls.serverName is missing: Gateways check",
    ),
    (
        {"grpcTls": {"directory": "/etc/tls", "secret": "tls", "serverName": "a.b"}, "gatewayApi": GATES},
        "gatewayApi.backendTls.caConfigMap is missing",
    ),
    ({"gatewayApi": {**GATES, "backendTls": {"version": "v1beta1"}}}, "at '/gatewayApi/backendTls/version'"),
    ({"drain": {"delaySeconds": -1}}, "at '/drain/delaySeconds'"),
    ({"startup": {"timeoutSeconds": "10m"}}, "at '/startup/timeoutSeconds'"),
    ({"traffic": {"code": {}}}, "traffic.code: there is no such server, but chat, chat-2"),
    ({"traffic": {"chat-2": {}}}, "traffic.chat-2: it is a candidate itself"),
    ({"traffic": {"chat": {"candidate": "chat-2"}}}, "at '/traffic/chat'"),
    ({"traffic": {"chat": {"candidate": "chat-2", "candidateWeight": 10_001}}}, "at '/traffic/chat/candidateWeight'"),
    ({"traffic": {"chat": {"candidate": "chat", "candidateWeight": 1}}}, 'traffic.chat.candidate is "chat"'),
    ({"traffic": {"chat": {"mirror": {"server": "nobody", "percent": 5}}}}, 'traffic.chat.mirror.server is "nobody"'),
    ({"traffic": {"chat": {"mirror": {"server": "chat-2", "percent": 0}}}}, "at '/traffic/chat/mirror/percent'"),
    ({"gatewayApi": {"enabled": True}}, "at '/gatewayApi/gateways'"),
    (GATEWAY, "inferencePool.endpointPickers.chat is missing"),
    ({"gatewayApi": {"inferencePool": {"enabled": True}}}, "gatewayApi.inferencePool.enabled is true and gatewayApi."),
    ({"releases": {"pull": {"cacheHostPath": "/a", "cacheClaim": "b"}}}, 'cacheHostPath ("/a") and cacheClaim ("b")'),
    ({"scaling": {"kind": "vpa"}}, "at '/scaling/kind'"),
    ({"scaling": {"minReplicas": 0}}, "at '/scaling/minReplicas'"),
    ({"scaling": {"minReplicas": 5}}, r"scaling.maxReplicas (4) is less than scaling.minReplicas (5)"),
    ({"scaling": {"targetLoad": 70}}, "at '/scaling/targetLoad'"),
    ({"network": {"clients": ["web"]}}, "at '/network/clients/0'"),
    ({"disruption": {"maxUnavailable": "101%"}}, "at '/disruption/maxUnavailable'"),
    ({"releases": {"pull": {"maxBytes": "1.2.3GB"}}}, "at '/releases/pull/maxBytes'"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "message"), BAD, ids=[message for _, message in BAD])
def test_a_bad_value_is_refused_by_name(servers: Mapping[str, Values], values: Values, message: str) -> None:
    with pytest.raises(ChartRefused, match=re.escape(message)):
        render(merged(servers["canary"], values))


def places_of_values(values: Values, *above: str) -> Iterator[tuple[str, ...]]:
    """Return the places of all values in the chart."""
    for key, value in values.items():
        if value is not None:
            yield (*above, key)
        if isinstance(value, Mapping):
            yield from places_of_values(value, *above, key)


PLACES = tuple(places_of_values(yaml.safe_load((CHART / "values.yaml").read_text())))


@pytest.mark.parametrize("place", PLACES, ids=".".join)
def test_a_value_that_is_taken_away_is_missed_by_name(servers: Mapping[str, Values], place: tuple[str, ...]) -> None:
    """Helm takes a key away that is null; without `network.enabled` there would be no policies."""
    without: Any = None
    for key in reversed(place):
        without = {key: without}
    with pytest.raises(ChartRefused, match=f"missing property '{place[-1]}'"):
        render(merged(servers["one"], without))


@pytest.mark.parametrize(
    ("deployment", "name", "message"),
    [
        ("several", "a-release-with-a-name-that-is-rather-long-for-one", "servers.chat would be called .* at most 50"),
        (
            "nodes",
            "a-release-of-a-group-that-has-45-bytes",
            "servers.chat would be called .* 49 characters of at most 44",
        ),
        ("one", "7b", "servers.chat would be called 7b-one-chat .* begins with a letter"),
        ("one", "a.b", "servers.chat would be called a.b-one-chat .* has no dots"),
    ],
)
def test_a_name_that_kubernetes_would_not_take_is_refused(
    servers: Mapping[str, Values], deployment: str, name: str, message: str
) -> None:
    with pytest.raises(ChartRefused, match=message):
        render(servers[deployment], name=name)


@pytest.mark.parametrize(
    ("release", "deployment", "other", "name", "whose"),
    [
        ("chat", "chat", "pods", "chat-pods", "servers.chat"),  # the headless Service of chat
        ("prod", "x", "envoy", "prod-x-envoy", "Envoy"),
    ],
)
def test_two_things_of_one_name_are_refused(
    servers: Mapping[str, Values], release: str, deployment: str, other: str, name: str, whose: str
) -> None:
    chat = servers["one"]["servers"]["chat"]
    values = merged(servers["one"], {"nameOverride": deployment, "servers": {other: chat}}, SITES["envoy"])
    with pytest.raises(ChartRefused, match=f"would have the name {name} in Kubernetes, which {whose} has"):
        render(values, name=release)


def test_a_request_is_neither_given_nor_shown_to_another_models_candidate(tmp_path: Path) -> None:
    # two models on one server
    (tmp_path / "shared.yaml").write_text(json.dumps({"name": "shared", "models": [shared("chat"), shared("code")]}))
    values = merged(deployment_values(tmp_path / "shared.yaml"), IMAGES, SITES["envoy"])
    assert sorted(values["servers"]) == ["chat", "chat-2", "code-2"]
    for mirror in ("chat-2", "code-2"):
        traffic = {"candidate": "code-2", "candidateWeight": 1000, "mirror": {"server": mirror, "percent": 10}}
        if mirror == "code-2":
            assert render(merged(values, {"traffic": {"chat": traffic}}))
        else:
            with pytest.raises(ChartRefused, match=r"traffic\.chat: candidate .* are releases of two models"):
                render(merged(values, {"traffic": {"chat": traffic}}))


def shared(name: str) -> dict[str, Any]:
    """Return a model with another release, in turns with others."""
    release = {"tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}
    turns = {"pool_mib": 100, "memory_mib": 80}
    return {"name": name, **release, "on_demand": turns, "other_releases": [{"release": 2, **release}]}


def test_several_nodes_need_keys(servers: Mapping[str, Values]) -> None:
    with pytest.raises(ChartRefused, match=r"multiNode\.sshSecret is needed: servers.chat is on 2 nodes"):
        render(merged(servers["nodes"], {"multiNode": {"sshSecret": ""}}))
