# SPDX-License-Identifier: Apache-2.0
"""The autoscalers' answers in each situation: the queries as they are rendered, answered by Prometheus' own tool."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import needs_chart, of_kind, render
from chart_values import server, values
from prometheus_here import FILES, ROOT, needs_prometheus, run

from observability.rules.scaling import scaling_records

pytestmark = [pytest.mark.slow, needs_chart, needs_prometheus]

# Scrapes of ten minutes, one in 15 s; asked at the end.
NUM = 41
ALWAYS = NUM
Series = dict[str, str]


def pod(
    name: str,
    *,
    running: object = 0,
    waiting: object = 0,
    seats: object = 8,
    kv: object = 0,
    num: int = ALWAYS,
    model: str = "tensorrt_llm",
    **labels: str,
) -> Series:
    """Return the series of a pod of the server `chat`; scrapes after the first `num` fail.

    A value that is a text is in promtool's notation.
    """
    known = {"namespace": "llm", "service": "chat", "server": "chat", "job": "trireme", "container": "triton"}
    all_labels = known | {"pod": name, "instance": f"{name}:8002", "model": model, "version": "1"} | labels
    selector = ",".join(f'{key}="{value}"' for key, value in all_labels.items() if value)
    figures = {
        "trireme_requests_running": running,
        "trireme_requests_waiting": waiting,
        "trireme_engine_max_num_seqs": seats,
        "trireme_kv_cache_usage_fraction": kv,
    }
    missing = f" stale _x{NUM - num}" if num < NUM else ""
    return {
        f"{metric}{{{selector}}}": value if isinstance(value, str) else f"{value}x{num - 1}{missing}"
        for metric, value in figures.items()
        if value is not None
    }  # fmt: skip


BUSY = pod("a", running=4, kv=0.25)
# What is scraped -> how many full servers the requests make, and the KV caches; None: nothing.
CASES: dict[str, tuple[Series, float | None, float | None]] = {
    "idle": (pod("a") | pod("b"), 0, 0),
    "two pods, half full": (BUSY | pod("b", running=4, kv=0.5), 1.0, 0.75),
    "all seats taken, and as many wait": (pod("a", running=8, waiting=8, kv=1), 2.0, 1.0),
    "one pod has not been scraped for a minute": (BUSY | pod("b", running=4, kv=0.5, num=NUM - 4), 1.0, 0.75),
    "one pod has been gone for four": (BUSY | pod("b", running=4, kv=0.5, num=NUM - 16), 0.5, 0.25),
    "all have been gone for a minute": (pod("a", running=4, kv=0.25, num=NUM - 4), 0.5, 0.25),
    "all have been gone for four": (pod("a", running=4, kv=0.25, num=NUM - 16), None, None),
    "there never was one": ({}, None, None),
    "a pod loads: Triton has metrics, and no model": (
        BUSY | {'nv_cpu_utilization{namespace="llm",service="chat",pod="b",instance="b:8002"}': "0.9x40"}, 0.5, 0.25,
    ),
    "a pod has just loaded": (
        BUSY | pod("b", running="_x40 0", waiting="_x40 0", seats="_x40 8", kv="_x40 0"), 0.5, 0.25,
    ),
    "a page was read before all was on it": (BUSY | pod("b", running=0, waiting=0, seats=None, kv=None), 0.5, 0.25),
    "a pod was rolled a minute ago: what it said last counts for three": (
        pod("old", running=4, kv=0.25, num=NUM - 4) | pod("new", running=4, kv=0.25), 1.0, 0.5,
    ),
    "its container was started again": (pod("a", running=6, kv=0.5, instance="a:8002") | BUSY, 0.5, 0.25),
    "of several models the fullest counts": (
        pod("a", running=2, kv=0.75, model="small_tensorrt_llm")
        | pod("a", running=4, seats=4, kv=0.5, model="big_tensorrt_llm"),
        1.0, 0.75,
    ),
    "what drafts beside an engine has no seats": (
        BUSY | pod("a", running=8, seats=None, kv=0.125, model="tensorrt_llm_draft"), 0.5, 0.25,
    ),
    "an engine is dead and holds nothing": (BUSY | pod("b", running=0, kv=0), 0.5, 0.25),
    "two Prometheus have scraped it": (BUSY | pod("a", running=4, kv=0.25, prometheus_replica="b"), 0.5, 0.25),
    "other servers, namespaces and clusters are others": (
        BUSY | pod("a", running=8, kv=1, namespace="other")
        | pod("b", running=8, kv=1, service="chat-2", server="chat-2")
        | pod("c", running=8, kv=1, service="second-chat"),
        0.5, 0.25,
    ),
    "somebody else scrapes it, without the labels": (pod("a", running=8, kv=1, service=""), None, None),
    "an engine without seats": (BUSY | pod("b", running=0, seats=0, kv=0), 0.5, 0.25),
    "nothing but an engine without seats": (pod("b", running=0, seats=0), None, 0),
    "NaN of one is no answer": (BUSY | pod("b", running="NaN " * NUM, kv="NaN " * NUM), None, None),
}  # fmt: skip


@cache
def queries(kind: str) -> dict[str, str]:
    """Return PromQL by what it asks for; for `hpa` as prometheus-adapter makes it, configured as documented."""
    servers = {"chat": server(role="prefill"), "chat-2": server(release=2, stable="chat")}
    documents = render(values(servers, scaling={"kind": kind}))
    if kind == "keda":
        [scaled] = [each for each in of_kind(documents, "ScaledObject") if each["metadata"]["name"] == "trireme-chat"]
        found = {trigger["name"]: trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]}
        return {"load": found["load"], "kv use": found["kv-use"], "prefill time": found["prefill-time"]}
    [hpa] = [
        each for each in of_kind(documents, "HorizontalPodAutoscaler") if each["metadata"]["name"] == "trireme-chat"
    ]
    metrics = {each["external"]["metric"]["name"]: each["external"]["metric"] for each in hpa["spec"]["metrics"]}
    asked = {
        "load": metrics["trireme_server_load"],
        "kv use": metrics["trireme_server_kv_use"],
        "prefill time": metrics["trireme_server_prefill_time"],
    }
    namespace = hpa["metadata"]["namespace"]
    return {name: adapter_query(metric, namespace=namespace) for name, metric in asked.items()}


def adapter_query(metric: Mapping[str, Any], *, namespace: str) -> str:
    """Return what prometheus-adapter asks for an External metric.

    The rule is that which docs/kubernetes.md tells to configure.
    """
    text = (ROOT / "docs/kubernetes.md").read_text(encoding="utf-8")
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "seriesQuery" in each]
    [rule] = yaml.safe_load(block)["rules"]["external"]
    [(pattern, label)] = re.findall(r'__name__=~"([^"]+)",(\w+)!=""', rule["seriesQuery"])
    assert re.fullmatch(pattern, metric["name"])
    assert rule["resources"]["overrides"] == {label: {"resource": "namespace"}}
    labels = {label: namespace, **metric["selector"]["matchLabels"]}
    matchers = ",".join(f'{key}="{value}"' for key, value in labels.items())
    query: str = rule["metricsQuery"].replace("<<.Series>>", metric["name"]).replace("<<.LabelMatchers>>", matchers)
    assert "<<" not in query
    return query


@pytest.mark.parametrize("kind", ["keda", "hpa"])
@pytest.mark.parametrize(("series", "load", "kv_use"), CASES.values(), ids=CASES)
def test_a_query_answers(kind: str, series: Series, load: float | None, kv_use: float | None, tmp_path: Path) -> None:
    check_answers(kind, series, {"load": load, "kv use": kv_use}, tmp_path)


def prefilling(name: str, seconds: float, *, num: int = ALWAYS, model: str = "tensorrt_llm") -> Series:
    """Return the series of a pod that computes prompts for so many of the 15 seconds between two scrapes."""
    labels = f'namespace="llm",service="chat",pod="{name}",instance="{name}:8002",model="{model}",version="1"'
    missing = f" stale _x{NUM - num}" if num < NUM else ""
    return {f"trireme_engine_prefill_step_seconds_total{{{labels}}}": f"0+{seconds}x{num - 1}{missing}"}


PREFILL_CASES: dict[str, tuple[Series, float | None]] = {
    "idle": (prefilling("a", 0) | prefilling("b", 0), 0),
    "two pods, one of them full": (prefilling("a", 15) | prefilling("b", 7.5), 1.5),
    "one pod has been gone for two minutes": (prefilling("a", 7.5) | prefilling("b", 3.75, num=NUM - 8), 0.5),
    "all have been gone for two minutes": (prefilling("a", 7.5, num=NUM - 8), None),
    "there never was one": ({}, None),
    "a pod has just loaded": (
        prefilling("a", 7.5) | dict.fromkeys(prefilling("b", 0), "_x40 0"), 0.5,
    ),
    "of several models the busiest counts": (
        prefilling("a", 3.75, model="small_tensorrt_llm") | prefilling("a", 7.5, model="big_tensorrt_llm"), 0.5,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["keda", "hpa"])
@pytest.mark.parametrize(("series", "share"), PREFILL_CASES.values(), ids=PREFILL_CASES)
def test_servers_that_compute_prompts_for_others_are_scaled_by_the_time_that_they_do(
    kind: str, series: Series, share: float | None, tmp_path: Path
) -> None:
    check_answers(kind, series, {"prefill time": share}, tmp_path)


def check_answers(kind: str, series: Series, expected: Mapping[str, float | None], tmp_path: Path) -> None:
    tests = [
        {"expr": queries(kind)[name], "eval_time": "10m", "exp_samples": samples(value)}
        for name, value in expected.items()
    ]
    # What is recorded for autoscalers alone: promtool evaluates every rule that it is given at every scrape.
    recorded = yaml.load((FILES / "prometheus/recording_rules.yml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    [scaling] = [group for group in recorded["groups"] if group["name"] == "trireme-scaling"]
    (tmp_path / "rules.yml").write_text(yaml.safe_dump({"groups": [scaling]}))
    document = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": name, "values": text} for name, text in series.items()],
                "promql_expr_test": tests,
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    assert "SUCCESS" in run("promtool", "test", "rules", "test.yml", folder=tmp_path)


def samples(value: float | None) -> list[dict[str, Any]]:
    return [] if value is None else [{"labels": "{}", "value": value}]


def test_keda_asks_for_what_is_recorded() -> None:
    recorded = dict(zip(("load", "kv use", "prefill time"), (each.expr for each in scaling_records()), strict=True))
    for name, query in queries("keda").items():
        assert 'namespace="llm",service="chat"' in query
        of_chat = recorded[name].replace('pod!=""', 'namespace="llm",service="chat"')
        of_chat = of_chat.replace("sum by (cluster, namespace, server, service) (", "sum(")
        of_chat = of_chat.replace("max by (cluster, namespace, server, service, pod) (", "max by (pod) (")
        assert query.split() == of_chat.split()
