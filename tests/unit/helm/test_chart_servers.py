# SPDX-License-Identifier: Apache-2.0
"""Objects that follow from a server's values: its end, its updates, its replicas, its names, what it serves."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import (
    DIGEST,
    IMAGES,
    NOTES,
    Documents,
    Values,
    deployment_values,
    merged,
    needs_chart,
    of_kind,
    render,
    render_texts,
    wrong,
)
from chart_matrix import CANARY, CLIENTS, DEPLOYMENTS, SITES, combined, deployments, pods_of, without_labels
from command_options import options
from kubernetes_structures import GrpcRoute, HttpRoute

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.end_times import GUARD_S, GUARDS_END_S, MAX_CLOSE_S
from serving.supervisor.health import MAX_SILENCE_S

pytestmark = [pytest.mark.slow, needs_chart]


@pytest.fixture(scope="module")
def servers() -> dict[str, dict[str, Any]]:
    return deployments()


@pytest.mark.parametrize(
    ("values", "grace_s", "exit_s"),
    [
        ({}, 5 + 235 + 30, 235),  # slo unset: 30 s to the first token, 2,048 more of 100 ms
        ({"drain": {"timeoutSeconds": 60}}, 5 + 60 + 30, 60),
        ({"drain": {"timeoutSeconds": 900}}, 5 + 235 + 30, 235),
        ({"drain": {"delaySeconds": 20, "timeoutSeconds": 0}}, 20 + 0 + 30, 0),
    ],
)
def test_a_pod_has_as_long_to_end_as_its_longest_answer(
    servers: Mapping[str, Values], values: Values, grace_s: int, exit_s: int
) -> None:
    [pod] = pods_of(render(merged(servers["one"], values)))
    assert pod["spec"]["terminationGracePeriodSeconds"] == grace_s
    command = pod["spec"]["containers"][0]["command"]
    assert command[command.index("--exit-timeout-s") + 1] == str(exit_s)


@pytest.mark.parametrize(
    ("deployment", "end_s"),
    [
        ("one", 30),
        ("gpus", 30 + (15 + 4 * 5) + 20),  # NCCL and CUDA of four ranks, and the guard that ends what they leave
        ("nodes", 30 + (15 + 8 * 5) + 20 + 30),  # of eight, and then upstream's script and mpirun
    ],
)
def test_a_pod_has_as_long_to_end_as_its_engine_takes_to_free_its_gpus(
    servers: Mapping[str, Values], deployment: str, end_s: int
) -> None:
    values = servers[deployment]
    [server] = values["servers"].values()
    grace_s = 5 + server["longestAnswerSeconds"] + end_s
    for pod in pods_of(render(values)):
        assert pod["spec"]["terminationGracePeriodSeconds"] == grace_s
        command = pod["spec"]["containers"][0]["command"]
        exit_s = int(command[command.index("--exit-timeout-s") + 1])
        # Workers outlive the leader's drain and its engine's end, by which their ranks are gone, and say which are not.
        assert exit_s == (grace_s - 5 if "worker" in command else server["longestAnswerSeconds"])


def test_what_waits_for_an_engines_end_waits_longer_than_any_takes() -> None:
    assert MAX_CLOSE_S + GUARD_S < GUARDS_END_S < MAX_SILENCE_S


@pytest.mark.parametrize(
    ("deployment", "spare_gpus", "surge", "unavailable"),
    [("one", 0, 1, 0), ("gpus", 0, 0, 1), ("gpus", 3, 0, 1), ("gpus", 4, 1, 0), ("gpus", 9, 2, 0), ("nodes", 8, 1, 0)],
)
def test_a_surge_fits_the_gpus_that_are_free(
    servers: Mapping[str, Values], deployment: str, spare_gpus: int, surge: int, unavailable: int
) -> None:
    documents = render(merged(servers[deployment], {"rollout": {"spareGpus": spare_gpus}}))
    if deployment == "nodes":  # two nodes of four
        [group] = of_kind(documents, "LeaderWorkerSet")
        update = group["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]
    else:
        [one] = of_kind(documents, "Deployment")
        update = one["spec"]["strategy"]["rollingUpdate"]
    assert update == {"maxSurge": surge, "maxUnavailable": unavailable}


@pytest.mark.parametrize(
    ("weight", "replicas"), [(0, 1), (1, 1), (1000, 1), (2500, 1), (2501, 2), (5000, 2), (10_000, 4)]
)
def test_a_candidate_has_its_share_of_the_replicas(servers: Mapping[str, Values], weight: int, replicas: int) -> None:
    traffic = {"chat": {"candidate": "chat-2", "candidateWeight": weight}}
    documents = render(merged(servers["canary"], {"traffic": traffic, "servers": {"chat": {"replicas": 4}}}))
    assert {
        one["metadata"]["labels"]["trireme/server"]: one["spec"]["replicas"] for one in of_kind(documents, "Deployment")
    } == {
        "chat": 4,
        "chat-2": replicas,
    }


def test_a_candidate_keeps_the_replicas_that_a_site_gives_it(servers: Mapping[str, Values]) -> None:
    traffic = {"chat": {"candidate": "chat-2", "candidateWeight": 2501}}
    for given, replicas in ((1, 2), (3, 3)):
        values = {"traffic": traffic, "servers": {"chat": {"replicas": 4}, "chat-2": {"replicas": given}}}
        assert replicas_of(render(merged(servers["canary"], values)))["chat-2"] == replicas


def replicas_of(documents: Documents) -> dict[str, int]:
    """Return the replicas of each server."""
    found = of_kind(documents, "Deployment")
    return {one["metadata"]["labels"]["trireme/server"]: one["spec"]["replicas"] for one in found}


def test_a_server_may_have_an_image_of_its_own(servers: Mapping[str, Values]) -> None:
    """A release is loaded by the TensorRT-LLM that it was built with, so a candidate may need another."""
    other = "sha256:" + "f" * 64
    documents = render(merged(servers["canary"], {"servers": {"chat-2": {"image": {"digest": other}}}}))
    images = {
        one["metadata"]["labels"]["trireme/server"]: one["spec"]["template"]["spec"]["containers"][0]["image"]
        for one in of_kind(documents, "Deployment")
    }
    assert images == {
        "chat": f"registry.example.com/trireme@{DIGEST}",
        "chat-2": f"registry.example.com/trireme@{other}",
    }


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("prod", {"chat": "prod-several-chat", "code": "prod-several-code", "draft": "prod-several-draft"}),
        ("several", {"chat": "several-chat", "code": "several-code", "draft": "several-draft"}),
    ],
)
def test_servers_have_names_of_their_own(servers: Mapping[str, Values], name: str, names: dict[str, str]) -> None:
    found = of_kind(render(servers["several"], name=name), "Deployment")
    assert {one["metadata"]["labels"]["trireme/server"]: one["metadata"]["name"] for one in found} == names
    renamed = merged(
        servers["several"], {"nameOverride": "x-chat", "servers": {"x-chat": servers["one"]["servers"]["chat"]}}
    )
    found = of_kind(render(renamed, name="prod"), "Deployment")
    assert len({one["metadata"]["name"] for one in found}) == 4


def test_another_number_of_replicas_starts_no_pod_again(servers: Mapping[str, Values]) -> None:
    def templates(replicas: int) -> list[Any]:
        return [
            pod["metadata"]["annotations"]
            for pod in pods_of(render(merged(servers["one"], {"servers": {"chat": {"replicas": replicas}}})))
        ]

    assert templates(1) == templates(3)


def test_a_group_is_one_server(servers: Mapping[str, Values]) -> None:
    documents = render(merged(combined(servers, "nodes", "placed")))
    assert of_kind(documents, "Deployment") == []
    [group] = of_kind(documents, "LeaderWorkerSet")
    spec = group["spec"]["leaderWorkerTemplate"]
    assert (spec["size"], spec["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    assert group["metadata"]["annotations"] == {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}
    for role in ("leader", "worker"):
        container = spec[f"{role}Template"]["spec"]["containers"][0]
        assert (
            container["resources"]["limits"] | {"nvidia.com/gpu": "4", "rdma/ib": 4} == container["resources"]["limits"]
        )
        assert {"name": "A", "value": "b"} in container["env"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    # The set makes a headless Service of its own name, which ours must not have.
    assert group["metadata"]["name"] not in {service["metadata"]["name"] for service in of_kind(documents, "Service")}
    for service in of_kind(documents, "Service"):
        assert service["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"


def test_what_a_server_serves_is_what_its_deployment_says(servers: Mapping[str, Values]) -> None:
    for deployment in DEPLOYMENTS:
        for pod in pods_of(render(servers[deployment])):
            text = pod["metadata"]["annotations"]["trireme/deployment"]
            spec = DeploymentSpec.model_validate(yaml.safe_load(text))
            assert (spec.name, spec.triton.host) == (deployment, "0.0.0.0")


@pytest.mark.parametrize(("deployment", "waits"), [("one", ("--ready",)), ("nodes", ("--workers", "--ready"))])
def test_a_server_is_not_killed_while_it_may_still_start(
    servers: Mapping[str, Values], deployment: str, waits: tuple[str, ...]
) -> None:
    pod = next(pods_of(render(merged(servers[deployment], {"startup": {"timeoutSeconds": 901}}))))
    container = pod["spec"]["containers"][0]
    command, probe = container["command"], container["startupProbe"]
    waits_s = sum(int(command[command.index(f"{wait}-timeout-s") + 1]) for wait in waits)
    assert 0 <= probe["failureThreshold"] * probe["periodSeconds"] - waits_s < probe["periodSeconds"]


def test_a_server_without_gpus_sees_none(servers: Mapping[str, Values]) -> None:
    """NVIDIA's runtime goes by the variable where no device plugin has set it, and its images say `all`."""
    for deployment, value in (("one", "void"), ("gpus", None)):
        [pod] = pods_of(render(servers[deployment]))
        env = {one["name"]: one["value"] for one in pod["spec"]["containers"][0]["env"]}
        assert env.get("NVIDIA_VISIBLE_DEVICES") == value


def test_names_that_yaml_takes_for_something_else_stay_names(tmp_path: Path) -> None:
    path = tmp_path / "on.yaml"
    model = {"name": "on", "tokenizer": {"dir": "/models/t"}, "engine": {"provider": "simulated"}}
    extra = {"name": "42", "dir": "/models/42"}
    path.write_text(json.dumps({"name": "on", "models": [model], "extra_models": [extra]}))
    site = {"controlKey": {"secret": "42", "key": "42"}, "imagePullSecrets": ["42"], "priorityClassName": "yes"}
    values = merged(deployment_values(path), IMAGES, SITES["gateway"], SITES["watched"], SITES["keda"], site)
    documents = render(
        merged(values, {"network": CLIENTS, "envoy": {"tls": {"secret": "42"}}}), name="on", namespace="42"
    )
    assert wrong(documents, version="1.36") == {}
    for document in documents:
        assert document["metadata"]["namespace"] == "42"
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "on"
    [http], [grpc] = of_kind(documents, "HTTPRoute"), of_kind(documents, "GRPCRoute")
    HttpRoute.model_validate(without_labels(http))
    GrpcRoute.model_validate(without_labels(grpc))


def notes(values: Values) -> str:
    [text] = [text for path, text in render_texts(values).items() if path.endswith(NOTES)]
    return text


def test_a_warning_is_given_where_an_update_would_be_an_outage(servers: Mapping[str, Values]) -> None:
    assert "an update is an outage" in notes(servers["gpus"])
    assert "an update is an outage" not in notes(merged(servers["gpus"], {"rollout": {"spareGpus": 4}}))
    assert "nobody may reach the servers" in notes(servers["one"])
    scaled = merged(servers["gpus"], SITES["keda"])
    assert "Set scaling.minReplicas to 2" in notes(merged(scaled, {"scaling": {"minReplicas": 1}}))
    assert "an update is an outage" not in notes(merged(scaled, {"scaling": {"minReplicas": 2}}))
    assert "nobody may reach" not in notes(merged(servers["one"], {"network": CLIENTS}))


def test_a_warning_is_given_of_values_that_do_nothing(servers: Mapping[str, Values]) -> None:
    undivided = merged(servers["canary"], CANARY, {"envoy": {"enabled": False}})
    assert "nothing of the chart divides" in notes(undivided)
    for site in ("envoy", "gateway"):
        assert "nothing of the chart divides" not in notes(merged(undivided, SITES[site]))
    alone = notes(merged(IMAGES, SITES["envoy"]))
    assert "servers is empty" in alone
    assert "Envoy:" not in alone
    assert "servers is empty" not in notes(servers["one"])


def test_pods_start_commands_that_there_are_with_options_that_they_have(servers: Mapping[str, Values]) -> None:
    commands = set()
    for deployment, site in itertools.product(DEPLOYMENTS, ("all of security", "pulled to a claim", "rollouts")):
        for pod in pods_of(render(combined(servers, deployment, site))):
            containers = [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])]
            commands |= {tuple(container["command"]) for container in containers}
            commands |= {
                tuple(container["lifecycle"]["preStop"]["exec"]["command"])
                for container in containers
                if "lifecycle" in container
            }
    parts = [part for command in commands for part in parts_of(command)]
    of_groups = {("group", "leader"), ("group", "worker")}
    assert {name for name, _ in parts} == {("serve",), ("pull",), ("drain",), ("rollout", "run"), *of_groups}
    for name, words in parts:
        assert {word for word in words if word.startswith("--")} <= options(*name), name


def parts_of(command: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Sequence[str]]]:
    """Commands of ours in it, with the words behind each; a group's leader starts another."""
    program, *words = command
    assert program == "trireme"
    while words:
        end = words.index("--") if "--" in words else len(words)
        size = 2 if words[0] in ("group", "rollout") else 1
        yield tuple(words[:size]), words[size:end]
        words = words[end + 1 :]
