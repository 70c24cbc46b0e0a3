# SPDX-License-Identifier: Apache-2.0
"""The runbooks' claims about the chart in each step of a procedure, asked of the chart."""

import re
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import DIGEST, IMAGES, deployment_values, merged, needs_chart, render
from prometheus_here import needs_prometheus, run
from test_runbooks import BLOCK, RUNBOOKS, commands

pytestmark = needs_chart
Objects = dict[tuple[str, str], dict[str, Any]]
SITE: dict[str, Any] = merged(
    IMAGES, {"envoy": {"enabled": True}, "monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}}}
)


def objects(*layers: Any) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): each for each in render(merged(*layers))}


def changed(before: Objects, after: Objects) -> set[tuple[str, str]]:
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def replaced(before: Objects, after: Objects) -> set[str]:
    """Return the deployments that stay while their pods are replaced."""
    return {
        name
        for kind, name in before.keys() & after.keys()
        if kind == "Deployment" and template(before, name) != template(after, name)
    }


def template(found: Objects, name: str) -> Any:
    return found["Deployment", name]["spec"]["template"]


@cache
def files() -> tuple[Any, Any, Any]:
    """Return the values of releases 1, 1 and 2, and 2, from the deployment files that the runbook shows."""
    both, last = (text for _, text in BLOCK.findall(RUNBOOKS["engine_upgrade.md"]) if text.startswith("# chat.yaml"))
    first = yaml.safe_dump({key: value for key, value in yaml.safe_load(both).items() if key != "other_releases"})
    return values(first), values(both), values(last)


def values(text: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chat.yaml"
        path.write_text(text)
        return deployment_values(path)


def weighed(weight: int) -> Any:
    return {"traffic": {"chat": {"candidate": "chat-2", "candidateWeight": weight, "salt": "2"}}}


def test_a_candidate_beside_it_leaves_the_stable_servers_alone() -> None:
    first, both, _ = files()
    before, after = objects(first, SITE), objects(both, SITE)
    assert replaced(before, after) == {"chat-envoy"}
    new = after.keys() - before.keys()
    assert ("Deployment", "chat-chat-2") in new
    mirror = {"traffic": {"chat": {"mirror": {"server": "chat-2", "percent": 25}}}}
    assert changed(after, objects(both, SITE, mirror)) == {("ConfigMap", "chat-envoy-routes")}


def rows() -> list[tuple[int, int]]:
    """Return weight and pods of the runbook's steps."""
    found = re.findall(r"^\| [\d.]+ \| (\d+) \| (\d) \|", RUNBOOKS["engine_upgrade.md"], re.MULTILINE)
    assert len(found) == 4
    return [(int(weight), int(pods)) for weight, pods in found]


def test_each_weight_brings_the_pods_that_the_runbook_says_and_replaces_none() -> None:
    _, both, _ = files()
    steps = [objects(both, SITE, weighed(weight)) for weight, _ in rows()]
    assert [step["Deployment", "chat-chat-2"]["spec"]["replicas"] for step in steps] == [pods for _, pods in rows()]
    for before, after in pairwise(steps):
        assert changed(before, after) <= {("ConfigMap", "chat-envoy-routes"), ("Deployment", "chat-chat-2")}
        assert replaced(before, after) == set()


def test_no_step_has_a_pod_of_the_candidate_take_more_than_a_stable_one_had() -> None:
    """Up, the pods of the step before take the new share; down, those of the new step the share of the one before."""
    pods, num_stable = dict(rows()), files()[0]["servers"]["chat"]["replicas"]
    up = [weight for weight, _ in rows()]
    said = re.search(r"between them: ([\d, ]+)\.", RUNBOOKS["engine_upgrade.md"])
    assert said is not None
    down = [up[-1], *(int(weight) for weight in said[1].split(","))]
    assert down[-1] == 0
    pods[0] = 1
    for before, after in pairwise(up):
        assert num_stable * after / 10_000 <= 1.001 * pods[before]
    for before, after in pairwise(down):
        assert num_stable * before / 10_000 <= 1.001 * pods[after]


def test_a_promotion_changes_the_stable_servers_alone_and_the_candidate_stays_until_it_is_retired() -> None:
    _, both, last = files()
    at_half = objects(both, SITE, weighed(5000))
    promoted = objects(both, last, SITE, weighed(5000))
    assert changed(at_half, promoted) == {("Deployment", "chat")}
    annotations = promoted["Deployment", "chat"]["spec"]["template"]["metadata"]["annotations"]
    assert "release: 2" in annotations["trireme/deployment"]
    at_none, retired = objects(both, last, SITE, weighed(0)), objects(last, SITE)
    assert replaced(at_none, retired) == {"chat-envoy"}
    assert ("Deployment", "chat-chat-2") not in retired


CHANGES: dict[str, Any] = {
    "image": {"digest": DIGEST.replace("0", "1")},
    "imagePullSecrets": ["registry"],
    "releases.pull": {"enabled": True, "claim": "other", "cacheHostPath": "/mnt"},
    "extraEnv": [{"name": "A", "value": "b"}],
    "extraVolumes": [{"name": "a", "emptyDir": {}}],
    "resources": {"cpus": 5},
    "startup": {"timeoutSeconds": 1801},
    "drain": {"delaySeconds": 6},
    "drain.timeoutSeconds": 100,
    "controlKey": {"secret": "other"},
    "remoteControl": {"secret": "rollouts"},
    "podSecurity": {"user": 10002},
    "spread": {"whenUnsatisfiable": "DoNotSchedule"},
    "tolerations": [{"key": "other", "operator": "Exists"}],
    "nodeSelector": {"a": "b"},
    "ports": {"http": 8004},
    "priorityClassName": "high",
    "extraVolumeMounts": [{"name": "scratch", "mountPath": "/a", "subPath": "a"}],
    "servers.NAME.replicas": 4,
    "scaling": {"kind": "hpa"},
    "rollout": {"spareGpus": 1},
    "disruption": {"maxUnavailable": 2},
    "monitoring": {"podMonitor": {"enabled": False}},
    "network": {"clients": [{"podSelector": {}}]},
    "gatewayApi": {"enabled": True, "gateways": [{"name": "models"}]},
    "envoy.replicas": 3,
    "envoy.retries": 4,
    "service": {"annotations": {"a": "b"}},
}


PULL: dict[str, Any] = {"releases": {"pull": {"enabled": True, "claim": "releases", "cacheHostPath": "/nvme"}}}
CONTROL: dict[str, Any] = {"remoteControl": {"secret": "control", "port": 8010}}
ROLLOUTS: dict[str, Any] = {"rollouts": {"enabled": True, "access": "key"}}


def row_of(beginning: str) -> tuple[set[str], str]:
    """Return the keys of the row in the upgrade's table that begins so, and what the row says of them."""
    [line] = [line for line in RUNBOOKS["upgrade.md"].splitlines() if line.startswith(f"| `{beginning}`")]
    keys, said = line.strip("| ").split(" | ")
    return set(re.findall(r"`([\w.]+)`", keys)), said


@pytest.mark.parametrize("key", CHANGES)
def test_a_value_replaces_the_pods_that_the_upgrades_table_says(key: str) -> None:
    all_servers, said = row_of("image")
    nobody, _ = row_of("servers.NAME.replicas")
    assert all_servers | nobody == CHANGES.keys()
    before = objects(files()[0], SITE)
    expected = set() if key in nobody else {"chat"}
    if f"`{key}`" in said:
        expected.add("chat-envoy")
    assert replaced(before, objects(files()[0], SITE, at(key, CHANGES[key]))) == expected


@pytest.mark.parametrize("key", [*CHANGES, "rollouts", "remoteControl.port"])
def test_a_value_replaces_the_pod_of_rollouts_where_the_upgrades_table_says_so(key: str) -> None:
    change = {"rollouts": {"nodeSelector": {"a": "b"}}, "remoteControl.port": 8011, **CHANGES}[key]
    layers = (files()[0], SITE, PULL, CONTROL, ROLLOUTS)
    found = replaced(objects(*layers), objects(*layers, at(key, change)))
    assert ("chat-rollouts" in found) == (key in row_of("rollouts")[0])


OPENAI: dict[str, Any] = {"openai": {"enabled": True, "tls": {"secret": "tls"}, "keys": {"secret": "keys"}}}


@pytest.mark.parametrize("key", [*CHANGES, "openai", "ports.grpc", "clusterDomain"])
def test_a_value_replaces_the_gateways_pods_where_the_upgrades_table_says_so(key: str) -> None:
    change = {"openai": {"maxBodyMiB": 9}, "ports.grpc": 9001, "clusterDomain": "example.org", **CHANGES}[key]
    layers = (files()[0], SITE, PULL, OPENAI)
    found = replaced(objects(*layers), objects(*layers, at(key, change)))
    assert ("chat-openai" in found) == (key in row_of("openai")[0])


def test_a_first_pod_of_rollouts_replaces_servers_with_a_pull_alone() -> None:
    for site, expected in (({}, set()), (PULL, {"chat"})):
        layers = (files()[0], SITE, site, CONTROL)
        assert replaced(objects(*layers), objects(*layers, ROLLOUTS)) == expected


def at(key: str, value: Any) -> Any:
    for part in reversed(key.replace("NAME", "chat").split(".")):
        value = {part: value}
    return value


@needs_prometheus
def test_prometheus_understands_every_query(tmp_path: Path) -> None:
    asked = [words for text in RUNBOOKS.values() for words in commands(text) if words[0] == "promtool"]
    queries = [words[4] for words in asked if len(words) == 5]
    assert len(queries) > 25
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    assert "SUCCESS" in run("promtool", "check", "rules", "--lint=none", "rules.yml", folder=tmp_path)
