# SPDX-License-Identifier: Apache-2.0
"""The examples of the chart: what it makes of them, and what a scanner says of that."""

import itertools
import re
from pathlib import Path

import pytest
import yaml
from chart_here import (
    EXAMPLES,
    GOLDEN,
    INSTALLED_AS,
    ROOT,
    Documents,
    example_values,
    golden_text,
    lint,
    merged,
    needs_chart,
    of_kind,
    render,
    scan,
)
from chart_matrix import pods_of, selects

from trireme.base.server_names import read_server_name

pytestmark = [pytest.mark.slow, needs_chart]


def test_there_are_eight() -> None:
    assert EXAMPLES == (
        "chat_and_code",
        "demo_cpu",
        "llama_405b_fp8_tp8_pp2",
        "llama_70b_int4_awq_tp4",
        "llama_8b_decode",
        "llama_8b_fp8",
        "llama_8b_prefill",
        "llama_8b_vllm",
    )


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_makes_what_it_made_before(name: str) -> None:
    """Meant to be different? `make golden`, and read the difference."""
    assert golden_text(name) == (GOLDEN / f"{name}.yaml").read_text()


def test_a_server_of_vllm_has_its_gpu_the_memory_of_its_ranks_and_writes_below_tmp_alone() -> None:
    [deployment] = of_kind(render(example_values("llama_8b_vllm")), "Deployment")
    pod = deployment["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"].startswith("registry.example.com/trireme-vllm@")
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    memory = [volume["emptyDir"]["sizeLimit"] for volume in volumes.values() if "Memory" in str(volume)]
    assert memory == ["10Gi"]
    image = (ROOT / "Dockerfile.vllm").read_text()
    written = re.findall(r"([A-Z_]+)=(/\S+)", image[image.index("ENV HOME") : image.index("# Bytecode")])
    assert {name for name, place in written if place.startswith("/tmp")} >= {"HOME", "VLLM_CACHE_ROOT", "HF_HOME"}
    assert any(mount["mountPath"] == "/tmp" for mount in container["volumeMounts"])


def test_prefill_and_decode_find_one_another_by_name_and_nobody_else_is_let_in_at_every_port() -> None:
    made = {name: render(example_values(name), name=release) for name, release in INSTALLED_AS.items()}
    pods = {name: next(pods_of(documents)) for name, documents in made.items()}
    served = yaml.safe_load(pods["llama_8b_decode"]["metadata"]["annotations"]["trireme/deployment"])
    [url] = served["models"][0]["prefill_servers"]["urls"]
    name = read_server_name(url)
    [service] = [each for each in of_kind(made["llama_8b_prefill"], "Service") if each["metadata"]["name"] == name.host]
    assert service["spec"]["clusterIP"] == "None", "each pod is a server"
    assert selects(service["spec"]["selector"], pods["llama_8b_prefill"])
    assert name.port in {port["port"] for port in service["spec"]["ports"]}
    for own, other in itertools.permutations(INSTALLED_AS):
        [policy] = of_kind(made[own], "NetworkPolicy")
        for rules, peers in (("ingress", "from"), ("egress", "to")):
            [to_all_ports] = [rule for rule in policy["spec"][rules] if "ports" not in rule]
            [peer] = to_all_ports[peers]
            labels = peer["podSelector"]["matchLabels"]
            assert selects(labels, pods[other])
            assert not selects(labels, pods[own])
    [scaled] = of_kind(made["llama_8b_prefill"], "ScaledObject")
    assert [trigger["name"] for trigger in scaled["spec"]["triggers"]] == ["load", "kv-use", "prefill-time"]
    [scaled] = of_kind(made["llama_8b_decode"], "ScaledObject")
    assert [trigger["name"] for trigger in scaled["spec"]["triggers"]] == ["load", "kv-use"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_strict_lint_finds_nothing(name: str) -> None:
    found = lint(example_values(name))
    assert found["errors"] == []
    assert [message["error"] for message in found["messages"]] == ["icon is recommended"]


def test_the_scanner_finds_nothing_in_any_of_them(tmp_path: Path) -> None:
    documents = [document for name in EXAMPLES for document in with_plain_pods(render(example_values(name)))]
    assert scanned(documents, tmp_path) == []


def test_the_scanner_would_find_something(tmp_path: Path) -> None:
    values = merged(example_values("demo_cpu"), {"servers": {"demo-cpu": {"resources": {"requests": {"cpu": "1"}}}}})
    found = scanned(render(values), tmp_path)
    assert {"CKV_K8S_11", "CKV_K8S_12", "CKV_K8S_13"} <= set(found)  # limits and requests that are missing


def with_plain_pods(documents: Documents) -> Documents:
    """And those of groups by themselves, for the scanner does not know LeaderWorkerSets."""
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{role}", "namespace": "llm"} | template["metadata"]}
        | {"spec": template["spec"]}
        for group in of_kind(documents, "LeaderWorkerSet")
        for role in ("leader", "worker")
        if (template := group["spec"]["leaderWorkerTemplate"][f"{role}Template"])
    ]
    return [*documents, *pods]


def scanned(documents: Documents, folder: Path) -> list[str]:
    """Return the numbers of checkov's checks that fail."""
    (folder / "all.yaml").write_text(yaml.dump_all(documents))
    return scan(folder / "all.yaml")


def test_pods_that_fill_a_node_share_no_volume_of_one() -> None:
    """A claim is one volume: of a node's own disk it would hold all pods of a group there, and they never start."""
    [group] = of_kind(render(example_values("llama_405b_fp8_tp8_pp2")), "LeaderWorkerSet")
    for role in ("leader", "worker"):
        volumes = group["spec"]["leaderWorkerTemplate"][f"{role}Template"]["spec"]["volumes"]
        [cache] = [volume for volume in volumes if volume["name"] == "cache"]
        assert "hostPath" in cache
