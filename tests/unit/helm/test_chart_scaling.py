# SPDX-License-Identifier: Apache-2.0
"""The chart's autoscalers: what is rendered, what is refused, and what KEDA and Kubernetes make of each answer."""

import re
from typing import Any

import pytest
from autoscaling import hpa_replicas, keda_replicas
from chart_here import ChartRefused, Documents, needs_chart, of_kind, render, wrong
from chart_values import server, values

from observability.rules.promql import AUTOSCALER
from observability.rules.scaling import scaling_alert

pytestmark = [pytest.mark.slow, needs_chart]

CANDIDATE = {"release": 2, "stable": "chat"}
NAN = float("nan")


def autoscalers(kind: str, *, servers: dict[str, Any] | None = None, traffic: Any = None, **scaling: Any) -> Documents:
    """Return the autoscalers of a server `chat`, or of others."""
    documents = render(values(servers or {"chat": server()}, scaling={"kind": kind, **scaling}, traffic=traffic or {}))
    for version in ("1.30", "1.36"):
        assert wrong(documents, version=version) == {}
    return [document for document in documents if document["kind"] in {"ScaledObject", "HorizontalPodAutoscaler"}]


def spec(kind: str, **scaling: Any) -> Any:
    [autoscaler] = autoscalers(kind, **scaling)
    return autoscaler["spec"]


def test_without_scaling_there_is_no_autoscaler_and_replicas_are_said() -> None:
    assert autoscalers("none") == []
    [deployment] = of_kind(render(values({"chat": server(replicas=3)})), "Deployment")
    assert deployment["spec"]["replicas"] == 3


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_what_is_scaled_has_no_replicas_of_its_own_which_an_upgrade_would_set(kind: str) -> None:
    documents = render(values({"chat": server(replicas=3), "big": server(nodes=2)}, scaling={"kind": kind}))
    for document in of_kind(documents, "Deployment") + of_kind(documents, "LeaderWorkerSet"):
        assert "replicas" not in document["spec"]


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_each_server_has_its_own_autoscaler_of_what_runs_it(kind: str) -> None:
    found = autoscalers(kind, servers={"chat": server(), "big": server(nodes=2, gpus=8), "small": server(gpus=0)})
    documents = render(values({"chat": server(), "big": server(nodes=2, gpus=8), "small": server(gpus=0)}))
    there = {
        (document["apiVersion"], document["kind"], document["metadata"]["name"])
        for document in of_kind(documents, "Deployment") + of_kind(documents, "LeaderWorkerSet")
    }
    targets = {autoscaler["metadata"]["name"]: autoscaler["spec"]["scaleTargetRef"] for autoscaler in found}
    assert targets.keys() == {"trireme-chat", "trireme-chat-big", "trireme-chat-small"}
    assert targets["trireme-chat-big"]["name"] == "chat-big-lws"
    assert {(target["apiVersion"], target["kind"], target["name"]) for target in targets.values()} == there


def test_alerts_find_the_autoscaler_by_its_name() -> None:
    [keda] = autoscalers("keda")
    [hpa] = autoscalers("hpa")
    by_keda = keda["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["name"]
    assert by_keda == keda["metadata"]["name"] == hpa["metadata"]["name"]
    for pattern in (AUTOSCALER, scaling_alert().expr):
        [found, *_] = re.findall(r'horizontalpodautoscaler=~"([^"]+)"', pattern)
        assert re.fullmatch(found, by_keda)


def test_a_server_may_have_a_kind_and_bounds_of_its_own() -> None:
    found = autoscalers(
        "keda",
        servers={
            "chat": server(scaling={"minReplicas": 2, "maxReplicas": 9}),
            "small": server(scaling={"kind": "none"}),
            "big": server(scaling={"kind": "hpa"}),
        },
        minReplicas=1,
        maxReplicas=3,
    )
    bounds = {
        autoscaler["metadata"]["name"]: {k: v for k, v in autoscaler["spec"].items() if "Replica" in k}
        for autoscaler in found
    }
    assert bounds == {
        "trireme-chat": {"minReplicaCount": 2, "maxReplicaCount": 9},
        "trireme-chat-big": {"minReplicas": 1, "maxReplicas": 3},
    }


@pytest.mark.parametrize(("weight", "least"), [(None, 1), (0, 1), (500, 1), (2500, 1), (2501, 2), (10_000, 4)], ids=str)
def test_a_candidate_has_its_share_of_the_least_and_one_at_least(weight: int | None, least: int) -> None:
    traffic = {} if weight is None else {"chat": {"candidate": "chat-2", "candidateWeight": weight}}
    servers = {"chat": server(), "chat-2": server(**CANDIDATE)}
    found = autoscalers(
        "keda", servers=servers, traffic=traffic, minReplicas=4, maxReplicas=8, fallbackReplicas=6,
        office={"enabled": True, "replicas": 5},
    )  # fmt: skip
    stable, candidate = (autoscaler["spec"] for autoscaler in found)
    assert (stable["minReplicaCount"], stable["fallback"]["replicas"]) == (4, 6)
    assert (candidate["minReplicaCount"], candidate["fallback"]["replicas"]) == (least, least)
    assert [trigger["name"] for trigger in stable["triggers"]] == ["load", "kv-use", "office"]
    assert [trigger["name"] for trigger in candidate["triggers"]] == ["load", "kv-use"], "office hours are no traffic"


def test_in_office_hours_there_are_no_fewer_and_never_more_than_the_most() -> None:
    office = {"enabled": True, "timezone": "Europe/Berlin", "start": "0 8 * * *", "end": "0 18 * * *", "replicas": 6}
    of_day = spec("keda", office=office, maxReplicas=4)
    assert of_day["triggers"][2]["metadata"] == {
        "timezone": "Europe/Berlin", "start": "0 8 * * *", "end": "0 18 * * *", "desiredReplicas": "4",
    }  # fmt: skip
    idle = {"load": [0.0], "kv-use": [0.0]}
    assert keda_replicas(of_day, {**idle, "office": [4]}, current=4) == 4
    assert keda_replicas(of_day, {**idle, "office": [1]}, current=4) == 1


@pytest.mark.parametrize("kind", ["keda", "hpa"])
def test_down_goes_one_server_or_half_of_them_a_minute(kind: str) -> None:
    found = spec(kind, scaleUpSeconds=20, scaleDownSeconds=900)
    behavior = found["behavior"] if kind == "hpa" else found["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"] == {"stabilizationWindowSeconds": 20}
    assert behavior["scaleDown"] == {
        "stabilizationWindowSeconds": 900,
        "selectPolicy": "Max",
        "policies": [
            {"type": "Pods", "value": 1, "periodSeconds": 60},
            {"type": "Percent", "value": 50, "periodSeconds": 60},
        ],
    }


def test_targets_are_the_same_numbers_for_both() -> None:
    keda, hpa = (spec(kind, targetLoad=0.29, targetKvUse=1) for kind in ("keda", "hpa"))
    assert [trigger["metadata"]["threshold"] for trigger in keda["triggers"]] == ["0.29", "1"]
    assert {
        metric["external"]["metric"]["name"]: metric["external"]["target"]["averageValue"] for metric in hpa["metrics"]
    } == {"trireme_server_load": "290m", "trireme_server_kv_use": "1000m"}


REFUSED = [
    ({"scaling": {"minReplicas": 0}}, "minReplicas"),
    ({"scaling": {"targetLoad": 0.01}}, "targetLoad"),
    ({"scaling": {"targetLoad": 1.5}}, "targetLoad"),
    ({"scaling": {"kind": "vpa"}}, "kind"),
    ({"scaling": {"prometheus": "prometheus:9090"}}, "prometheus"),
    ({"scaling": {"cluster": 'a"}'}}, "cluster"),
    ({"scaling": {"idleReplicas": 0}}, "idleReplicas"),
    ({"scaling": {"kind": "hpa", "office": {"enabled": True}}}, "scaling.office is KEDA's, and servers.chat"),
    (
        {"servers": {"chat": server(scaling={"minReplicas": 5})}},
        "servers.chat would have at least 5 replicas and at most 4",
    ),
    (
        {"servers": {"chat": server(scaling={"kind": "hpa", "maxReplicas": 1})}, "scaling": {"minReplicas": 2}},
        "servers.chat would have at least 2 replicas and at most 1",
    ),
]


@pytest.mark.parametrize(("said", "refusal"), REFUSED, ids=lambda each: each if isinstance(each, str) else "")
def test_what_cannot_scale_is_refused(said: dict[str, Any], refusal: str) -> None:
    all_values = values(said.get("servers", {"chat": server()}))
    all_values["scaling"] = {"kind": "keda", **said.get("scaling", {})}
    with pytest.raises(ChartRefused, match=re.escape(refusal)):
        render(all_values)


# Target 0.7 of the load and 0.8 of the KV caches, one to eight servers, two without an answer.
SCALING = {"maxReplicas": 8, "fallbackReplicas": 2}
# (load, KV use, servers now) -> servers wanted: by both autoscalers, whatever runs now.
ANSWERED = {
    "idle": (0.0, 0.0, 4, 1),
    "one server, a little full": (0.3, 0.1, 1, 1),
    "three servers' load: 2.1 / 0.7": (2.1, 0.5, 1, 3),
    "the same with six running": (2.1, 0.5, 6, 3),
    "a little more is within the tolerance": (2.3, 0.5, 3, 3),
    "more than that is not": (2.4, 0.5, 3, 4),
    "the KV caches are fuller: 3.3 / 0.8": (2.1, 3.3, 3, 5),
    "a queue ten servers long": (10.0, 1.0, 1, 8),
}
ONE_IS_NOT = {
    "KV use is not answered, and the load wants more": ([2.8], [], 2, 4),
    "KV use is not answered, and the load wants fewer": ([0.1], [], 4, 4),
    "the load is not answered, and KV use wants fewer": ([], [0.1], 4, 4),
}


@pytest.mark.parametrize(("load", "kv_use", "current", "want"), ANSWERED.values(), ids=ANSWERED)
def test_both_want_as_many_servers_as_the_load_needs(load: float, kv_use: float, current: int, want: int) -> None:
    keda, hpa = spec("keda", **SCALING), spec("hpa", **SCALING)
    assert keda_replicas(keda, {"load": [load], "kv-use": [kv_use]}, current=current) == want
    adapter = {"trireme_server_load": [load], "trireme_server_kv_use": [kv_use]}
    assert hpa_replicas(hpa, adapter, current=current) == want


@pytest.mark.parametrize(("load", "kv_use", "current", "want"), ONE_IS_NOT.values(), ids=ONE_IS_NOT)
def test_without_one_of_the_two_nothing_goes_down(
    load: list[float], kv_use: list[float], current: int, want: int
) -> None:
    keda, hpa = spec("keda", **SCALING), spec("hpa", **SCALING)
    assert keda_replicas(keda, {"load": load, "kv-use": kv_use}, current=current, num_failures=1) == want
    assert keda_replicas(keda, {"load": load, "kv-use": kv_use}, current=current, num_failures=9) == want
    adapter = {"trireme_server_load": load, "trireme_server_kv_use": kv_use}
    assert hpa_replicas(hpa, adapter, current=current) == want


@pytest.mark.parametrize("nothing", [[], [NAN]], ids=["empty", "NaN"])
def test_without_any_answer_keda_keeps_what_runs_and_has_the_fallback_at_least(nothing: list[float]) -> None:
    keda = spec("keda", **SCALING)
    answers = {"load": nothing, "kv-use": nothing}
    assert [keda_replicas(keda, answers, current=5, num_failures=number) for number in (1, 3, 4, 40)] == [5, 5, 5, 5]
    assert [keda_replicas(keda, answers, current=1, num_failures=number) for number in (1, 3, 4, 40)] == [1, 1, 2, 2]


def test_without_any_answer_kubernetes_keeps_what_runs() -> None:
    answers: dict[str, list[float]] = {"trireme_server_load": [], "trireme_server_kv_use": []}
    assert hpa_replicas(spec("hpa", **SCALING), answers, current=5) == 5


def test_with_kedas_default_no_answer_would_be_no_load() -> None:
    # the reason for `ignoreNullValues`
    keda = spec("keda", **SCALING)
    for trigger in keda["triggers"]:
        assert trigger["metadata"].pop("ignoreNullValues") == "false"
    assert keda_replicas(keda, {"load": [], "kv-use": []}, current=5) == 1
