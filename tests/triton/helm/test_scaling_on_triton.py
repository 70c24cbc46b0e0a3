# SPDX-License-Identifier: Apache-2.0
"""The queries of the chart's autoscalers, answered by a real Prometheus at a real server: idle, under load, gone.

The server is scraped under the labels that the chart's PodMonitor makes of a pod. Minutes of queries and rules are
seconds here (`observability.rules.shortened`).
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from chart_here import DIGEST, deployment_values, merged, needs_chart, of_kind, render
from metrics_page import metrics_page
from prometheus_here import needs_prometheus
from running_server import RunningServer, deployment_text
from scraped_pods import discovered, relabel_configs
from steady_load import steady_load
from waiting import wait_until

from clients.streaming import GenerateRequest
from observability.local_prometheus import LocalPrometheus
from observability.rules.scaling import KV_USE, LOAD, PREFILL_TIME
from observability.rules.shortened import shortened
from trireme.base.free_ports import free_ports

pytestmark = [needs_chart, needs_prometheus]

NUM_SEATS = 4
NUM_CALLERS = 8  # as many wait as run
PREFILL = {"keda prefill", f"hpa {PREFILL_TIME}"}
LOADING = "# what Triton says before a model is loaded\nnv_cpu_utilization 0.9\n"


class InCluster(LocalPrometheus):
    """A Prometheus that finds pods as one with the chart's PodMonitor does."""

    monitor: dict[str, Any]
    pods: list[dict[str, Any]]

    def set_targets(self, job: str, targets: Any) -> None:
        del targets
        (self.folder / f"{job}.json").write_text(json.dumps(self.pods))

    def _configuration(self) -> dict[str, Any]:
        configuration = super()._configuration()
        [job] = configuration["scrape_configs"]
        job["relabel_configs"] = relabel_configs(self.monitor)
        return configuration


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the objects of an installation, and the deployment's text."""
    engine = {"provider": "simulated", "step_ms": 20.0, "max_num_seqs": NUM_SEATS, "num_kv_blocks": 512}
    text = deployment_text("chat", engine=engine)
    path = tmp_path_factory.mktemp("chart") / "chat.yaml"
    path.write_text(text)
    site = {
        "image": {"repository": "registry.example/trireme", "digest": DIGEST},
        "monitoring": {"podMonitor": {"enabled": True}},
    }
    values = merged(deployment_values(path), site, {"servers": {"chat": {"role": "prefill"}}})  # for every query
    documents = {kind: render(values | {"scaling": {"kind": kind}}) for kind in ("keda", "hpa")}
    [scaled] = of_kind(documents["keda"], "ScaledObject")
    [hpa] = of_kind(documents["hpa"], "HorizontalPodAutoscaler")
    [monitor] = of_kind(documents["keda"], "PodMonitor")
    return {
        "deployment": text,
        "scaled": scaled,
        "hpa": hpa,
        "monitor": monitor,
        "server": next(iter(values["servers"])),
    }


def queries(chart: Any) -> dict[str, str]:
    """Return the queries by what asks for them, and for what."""
    by_keda = {
        trigger["name"]: in_seconds(trigger["metadata"]["query"]) for trigger in chart["scaled"]["spec"]["triggers"]
    }
    found = {"keda load": by_keda["load"], "keda kv use": by_keda["kv-use"], "keda prefill": by_keda["prefill-time"]}
    for metric in (each["external"]["metric"] for each in chart["hpa"]["spec"]["metrics"]):
        labels = {"namespace": chart["hpa"]["metadata"]["namespace"], **metric["selector"]["matchLabels"]}
        matchers = ",".join(f'{name}="{value}"' for name, value in labels.items())
        found[f"hpa {metric['name']}"] = f"sum({metric['name']}{{{matchers}}})"  # as docs/kubernetes.md has it
    assert set(found) == {"keda load", "keda kv use", f"hpa {LOAD}", f"hpa {KV_USE}"} | PREFILL
    return found


def in_seconds(query: str) -> str:
    rules = {"groups": [{"name": "query", "rules": [{"record": "query", "expr": query}]}]}
    text: str = yaml.safe_load(shortened(yaml.safe_dump(rules)))["groups"][0]["rules"][0]["expr"]
    assert text != query
    return text


def answers(prometheus: LocalPrometheus, chart: Any) -> dict[str, float | None]:
    """Return a number for each query, or None."""
    found: dict[str, float | None] = {}
    for name, query in queries(chart).items():
        samples = prometheus.query(query)
        assert len(samples) <= 1, f"KEDA takes one sample: {samples}"
        found[name] = float(samples[0]["value"][1]) if samples else None
    return found


@pytest.fixture
def prometheus(chart: Any, tmp_path: Path) -> Iterator[tuple[InCluster, RunningServer]]:
    """Yield Prometheus at a server, and at another that never ends to load."""
    server = RunningServer(chart["deployment"], tmp_path / "server")
    with server, metrics_page(lambda: LOADING) as loading:
        ports = free_ports(2)
        found = InCluster(tmp_path, {"trireme": []}, ports=(ports[0], ports[1]), is_fast=True)
        found.monitor = chart["monitor"]
        found.pods = [
            discovered(f"127.0.0.1:{server.metrics_port}", pod="chat-a", server=chart["server"]),
            discovered(loading, pod="chat-b", server=chart["server"]),
        ]
        with found:
            yield found, server


def test_scaling_queries_are_0_when_idle_follow_the_load_and_have_no_answer_when_the_server_is_gone(
    prometheus: tuple[InCluster, RunningServer], chart: Any
) -> None:
    watched, server = prometheus
    loading_is_scraped = 'up{job="trireme",pod="chat-b"} == 1'  # a time of its own: it may be after the server's
    wait_until(lambda: bool(watched.query(loading_is_scraped)), 30)
    wait_until(lambda: set(answers(watched, chart).values()) == {0.0}, 30)
    [up] = watched.query(loading_is_scraped)
    assert up["metric"] | {"namespace": "llm", "service": "chat", "server": chart["server"]} == up["metric"]

    request = GenerateRequest(text_input="Once upon a time there was a fox", max_tokens=100, stream=True)
    with steady_load(server.url, [request], num_callers=NUM_CALLERS):
        # All callers are there but in the moment between two requests: 8 requests of 4 seats.
        enough = {"keda load": 1.5, f"hpa {LOAD}": 1.5, "keda kv use": 0.01, f"hpa {KV_USE}": 0.01}
        enough |= dict.fromkeys(PREFILL, 0.001)
        wait_until(lambda: all((value or 0) >= enough[name] for name, value in answers(watched, chart).items()), 30)
        most = {"keda load": 2.0, f"hpa {LOAD}": 2.0, "keda kv use": 1.0, f"hpa {KV_USE}": 1.0}
        most |= dict.fromkeys(PREFILL, 1.1)  # of a time between two scrapes, which Prometheus rounds
        for _ in range(20):
            seen = answers(watched, chart)
            for name in [each for each in PREFILL if seen[each] is None]:
                del seen[name]  # a rate needs two scrapes, which came late in its second
            assert all(value is not None and 0 <= value <= most[name] for name, value in seen.items()), seen
            time.sleep(0.1)

    server.stop()
    wait_until(lambda: set(answers(watched, chart).values()) == {None}, 30)
    assert watched.query('up{job="trireme",pod="chat-a"} == 0'), "it is Prometheus' target still, and does not answer"
