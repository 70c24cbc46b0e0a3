# SPDX-License-Identifier: Apache-2.0
"""The chart's controller of rollouts: its pod, whom it reaches, what it may change, and where it keeps them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer.main
from chart_here import NOTES, ChartRefused, Documents, Values, merged, needs_chart, of_kind, render, render_texts
from chart_matrix import CANARY, SITES, deployments, pods_of, selects
from chart_values import server
from test_chart_examples import scanned
from typer.core import TyperGroup

from trireme.commands import command_app

pytestmark = [pytest.mark.slow, needs_chart]
ROLLOUTS = SITES["rollouts"]
DATABASE = SITES["rollouts in a database"]


@pytest.fixture(scope="module")
def servers() -> dict[str, dict[str, Any]]:
    return deployments()


def is_controller(document: Mapping[str, Any]) -> bool:
    return bool(document["metadata"]["labels"].get("app.kubernetes.io/component") == "rollouts")


def named(documents: Documents) -> set[tuple[str, str]]:
    return {(each["kind"], each["metadata"]["name"]) for each in documents if is_controller(each)}


def pod_of(documents: Documents) -> dict[str, Any]:
    [pod] = [pod for pod in pods_of(documents) if is_controller(pod)]
    return dict(pod["spec"])


def env_of(documents: Documents) -> dict[str, Any]:
    [container] = pod_of(documents)["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def test_by_default_there_is_none(servers: Mapping[str, Values]) -> None:
    assert named(render(merged(servers["one"], {"remoteControl": {"secret": "rollouts"}}))) == set()


def test_one_process_waits_for_rollouts_and_commands_beside_it_know_where(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["one"], ROLLOUTS))
    name = "chat-one-rollouts"
    assert named(documents) == {(kind, name) for kind in ("Deployment", "NetworkPolicy", "PersistentVolumeClaim")}
    [deployment] = [each for each in of_kind(documents, "Deployment") if is_controller(each)]
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod = pod_of(documents)
    [container] = pod["containers"]
    assert container["command"] == ["trireme", "rollout", "run", "--wait"]
    rollout_env = {key: value for key, value in env_of(documents).items() if key.startswith("TRIREME_")}
    assert rollout_env == {
        "TRIREME_ROLLOUT_STORE": "/state/rollouts.sqlite",
        "TRIREME_ROLLOUT_SERVER": "https://chat-one-chat-control:8004",
        "TRIREME_ROLLOUT_SERVER_CA_FILE": "/etc/trireme/rollouts/ca.crt",
        "TRIREME_ROLLOUT_SERVER_TOKEN_FILE": "/etc/trireme/rollouts/key.txt",
        "TRIREME_ROLLOUT_LEAVE": "1",
    }
    commands = typer.main.get_command(command_app("rollout"))
    assert isinstance(commands, TyperGroup)
    assert set(rollout_env) <= {str(parameter.envvar) for parameter in commands.commands["start"].params}
    [control] = [each for each in of_kind(documents, "Service") if each["metadata"]["name"] == "chat-one-chat-control"]
    assert 8004 in [port["port"] for port in control["spec"]["ports"]]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert (mounted["/etc/trireme/rollouts"], mounted["/state"]) == ("access", "state")
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["access"]["secret"]["secretName"] == "key-of-rollouts"
    assert volumes["state"]["persistentVolumeClaim"]["claimName"] == name
    assert not any("gpu" in key for key in container["resources"]["limits"])


def test_it_runs_as_the_servers_do(servers: Mapping[str, Values]) -> None:
    own = {"servers": {"chat": {"image": {"digest": "sha256:" + "f" * 64}}}}
    documents = render(merged(servers["one"], ROLLOUTS, SITES["pulled to a claim"], own))
    [of_server] = [pod["spec"] for pod in pods_of(documents) if not is_controller(pod)]
    pod = pod_of(documents)
    assert pod["securityContext"] == of_server["securityContext"]
    for key in ("image", "securityContext", "workingDir"):
        assert pod["containers"][0][key] == of_server["containers"][0][key], key
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("chat-one", False)


@pytest.mark.parametrize(
    ("deployment", "more", "name"),
    [
        ("several", {}, "chat"),  # the deployment's first
        ("several", {"rollouts": {"server": "code"}}, "code"),
        ("several", {"defaultServer": ""}, "chat"),
        ("canary", {"defaultServer": ""}, "chat"),  # no candidate
    ],
)
def test_a_command_that_names_no_server_asks_that_of_the_values(
    servers: Mapping[str, Values], deployment: str, more: Values, name: str
) -> None:
    env = env_of(render(merged(servers[deployment], ROLLOUTS, {"remoteControl": {"port": 8010}}, more)))
    assert env["TRIREME_ROLLOUT_SERVER"] == f"https://chat-{deployment}-{name}-control:8010"


def test_a_volume_is_made_where_none_is_named_and_outlives_the_chart(servers: Mapping[str, Values]) -> None:
    store = {"size": "2Gi", "storageClass": "fast"}
    [claim] = of_kind(render(merged(servers["one"], ROLLOUTS, {"rollouts": {"store": store}})), "PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    spec = claim["spec"]
    assert (spec["resources"]["requests"]["storage"], spec["storageClassName"]) == ("2Gi", "fast")
    documents = render(merged(servers["one"], ROLLOUTS, {"rollouts": {"store": {"claim": "mine"}}}))
    assert of_kind(documents, "PersistentVolumeClaim") == []
    [state] = [volume for volume in pod_of(documents)["volumes"] if volume["name"] == "state"]
    assert state["persistentVolumeClaim"]["claimName"] == "mine"


def test_a_database_takes_the_place_of_the_volume(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["one"], DATABASE))
    assert of_kind(documents, "PersistentVolumeClaim") == []
    env, pod = env_of(documents), pod_of(documents)
    assert env["TRIREME_ROLLOUT_STORE"] == "postgresql://rollouts@db:5432/chat"
    assert env["PGPASSWORD"] == {"secretKeyRef": {"name": "database", "key": "PGPASSWORD"}}
    assert "/state" not in {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert "PGPASSWORD" not in env_of(render(merged(servers["one"], DATABASE, {"rollouts": {"store": {"secret": ""}}})))


def test_releases_are_where_the_servers_have_them(servers: Mapping[str, Values]) -> None:
    """A pull brings a server its own release alone, and a candidate is another one."""
    more = merged(SITES["pulled to a claim"], {"releases": {"pull": {"mountPath": "/built"}}})
    pods = list(pods_of(render(merged(servers["nodes"], ROLLOUTS, more))))
    assert len(pods) == 3  # a leader, a worker, the controller
    for pod in pods:
        [mount] = [each for each in pod["spec"]["containers"][0]["volumeMounts"] if each["name"] == "releases"]
        assert mount == {"name": "releases", "mountPath": "/built", "readOnly": True}
        [volume] = [each for each in pod["spec"]["volumes"] if each["name"] == "releases"]
        assert volume["persistentVolumeClaim"] == {"claimName": "r", "readOnly": True}
    for pod in pods_of(render(merged(servers["nodes"], more))):
        assert "releases" not in {each["name"] for each in pod["spec"]["containers"][0]["volumeMounts"]}
    documents = render(merged(servers["one"], ROLLOUTS, SITES["placed"]))
    assert SITES["placed"]["extraVolumeMounts"][0] in pod_of(documents)["containers"][0]["volumeMounts"]


def test_only_a_gateway_gives_it_a_token_which_is_for_the_charts_own_routes(servers: Mapping[str, Values]) -> None:
    documents = render(merged(servers["canary"], ROLLOUTS, SITES["gateway"], CANARY))
    name = "chat-canary-rollouts"
    assert {(kind, name) for kind in ("ServiceAccount", "Role", "RoleBinding")} <= named(documents)
    [role], [binding] = of_kind(documents, "Role"), of_kind(documents, "RoleBinding")
    [http], [grpc] = of_kind(documents, "HTTPRoute"), of_kind(documents, "GRPCRoute")
    assert http["metadata"]["name"] == grpc["metadata"]["name"] == "chat-canary-chat"
    assert role["rules"] == [
        {
            "apiGroups": ["gateway.networking.k8s.io"],
            "resources": ["httproutes", "grpcroutes"],
            "resourceNames": ["chat-canary-chat"],  # the candidate has no route
            "verbs": ["get", "list", "watch", "patch"],
        }
    ]
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": "llm"}]
    for pod in pods_of(documents):
        account = (pod["spec"]["serviceAccountName"], pod["spec"]["automountServiceAccountToken"])
        assert account == ((name, True) if is_controller(pod) else ("chat-canary", False))


def test_it_reaches_the_controls_and_nobody_reaches_it(servers: Mapping[str, Values]) -> None:
    peers = [{"podSelector": {"matchLabels": {"app": "elsewhere"}}}]
    documents = render(merged(servers["one"], DATABASE, {"network": {"rollouts": peers}}))
    policies = {is_controller(each): each["spec"] for each in of_kind(documents, "NetworkPolicy")}
    assert len(policies) == 2
    [rule] = policies[False]["ingress"]
    assert rule["ports"] == [{"port": "control"}, {"port": "grpc"}]
    own, *others = rule["from"]
    pods = {is_controller(pod): pod for pod in pods_of(documents)}
    assert others == peers
    assert selects(own["podSelector"]["matchLabels"], pods[True])
    assert not selects(own["podSelector"]["matchLabels"], pods[False])
    assert policies[True]["policyTypes"] == ["Ingress", "Egress"]
    assert policies[True]["ingress"] == []
    dns, to_servers, *more = policies[True]["egress"]
    assert {port["port"] for port in dns["ports"]} == {53}
    [peer] = to_servers["to"]
    assert selects(peer["podSelector"]["matchLabels"], pods[False])
    assert to_servers["ports"] == rule["ports"]
    assert more == DATABASE["rollouts"]["egress"]


def notes(*layers: Values) -> str:
    [text] = [text for path, text in render_texts(merged(*layers)).items() if path.endswith(NOTES)]
    return text


def test_the_notes_say_how_to_ask_it_and_what_a_rollout_could_not_do(servers: Mapping[str, Values]) -> None:
    plain = notes(servers["one"], ROLLOUTS)
    assert "kubectl -n llm exec deploy/chat-one-rollouts -- trireme rollout status" in plain
    changes = "the number of pods of servers.chat changes"
    assert changes not in plain
    assert changes not in notes(servers["one"], ROLLOUTS, {"servers": {"chat": {"replicas": 2}}})
    assert changes in notes(servers["one"], ROLLOUTS, SITES["keda"])
    unreached = "no rollout reaches the Kubernetes API"
    assert unreached in notes(servers["one"], ROLLOUTS, SITES["gateway"])
    assert unreached not in notes(servers["one"], DATABASE, SITES["gateway"])
    assert "rollouts have none" in notes(servers["one"], ROLLOUTS, SITES["TLS of Triton's own"])


REFUSED: dict[str, tuple[Values, str]] = {
    "no control": ({"remoteControl": {"secret": ""}}, "remoteControl.secret is missing, and rollouts.enabled is true"),
    "no key": ({"rollouts": {"access": ""}}, "rollouts.access is missing, and rollouts.enabled is true"),
    "no such server": ({"rollouts": {"server": "x"}}, 'rollouts.server is "x", and servers are chat, chat-2'),
    "a candidate": ({"rollouts": {"server": "chat-2"}}, 'rollouts.server is "chat-2", a candidate itself; .* chat$'),
    "a file and a database": ({"rollouts": {"store": {"claim": "c"}}}, 'rollouts.store.claim is "c", and .* database'),
    "a password of a file": ({"rollouts": {"store": {"url": ""}}}, 'rollouts.store.secret is "database"'),
    "another database": ({"rollouts": {"store": {"url": "mysql://u@h/d"}}}, "at '/rollouts/store/url'"),
    "a database that no policy allows": ({"rollouts": {"egress": []}}, "rollouts.egress is empty"),
    "a name that a server has": ({"servers": {"rollouts": server()}}, "-rollouts in Kubernetes, which the rollouts' c"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_work_is_refused_by_name(servers: Mapping[str, Values], case: str) -> None:
    values, message = REFUSED[case]
    assert render(merged(servers["canary"], DATABASE))
    with pytest.raises(ChartRefused, match=message):
        render(merged(servers["canary"], DATABASE, values))


@pytest.mark.parametrize(
    "url", ["postgresql://u:hidden@db:5432/chat", "postgres://u@db/chat?sslmode=require&password=hidden"]
)
def test_a_password_in_the_address_is_refused_and_not_shown(servers: Mapping[str, Values], url: str) -> None:
    with pytest.raises(ChartRefused, match=r"rollouts\.store\.url has a password") as refused:
        render(merged(servers["one"], DATABASE, {"rollouts": {"store": {"url": url}}}))
    assert "hidden" not in str(refused.value)


def test_a_scanner_finds_what_is_meant(servers: Mapping[str, Values], tmp_path: Path) -> None:
    documents = render(merged(servers["one"], DATABASE, SITES["gateway"]))
    found = scanned([each for each in documents if is_controller(each)], tmp_path)
    # No probes, a password in the environment, where libpq looks for it, and a token, for the routes.
    assert found == ["CKV_K8S_35", "CKV_K8S_38", "CKV_K8S_8", "CKV_K8S_9"]
