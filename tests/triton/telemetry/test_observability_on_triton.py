# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus at a real server: every panel has data, and alerts go all the way to Alertmanager and end there.

Minutes of the rules are seconds here (`observability.rules.shortened`); all else is as in the files.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from metrics_page import metrics_page
from prometheus_here import needs_prometheus
from running_server import ENDPOINTS, RunningServer, deployment_text
from steady_load import steady_load
from waiting import wait_until

from clients.rollout.estimate.seen_traffic import HISTOGRAMS, SeenTraffic, Unknown, of_prometheus
from clients.streaming import GenerateRequest
from observability.dashboards.panels import Dashboard, dashboards, filled_in
from observability.local_prometheus import LocalPrometheus
from observability.rules.objectives import Objectives
from trireme.base.free_ports import free_ports

pytestmark = needs_prometheus

PAGES = Path(__file__).parents[2] / "data/metrics_pages"
EXPORTERS = ("dcgm-exporter", "kube-state-metrics", "node-exporter")
DEMO = Path(__file__).parents[3] / "examples/demo_model/target"
FIGURES = {
    "weight_bytes": 10**8, "kv_bytes_per_token": 2048, "flops_per_token": 10**8,
    "peak_bandwidth_bytes_per_s": 10**11, "peak_flops": 10**13,
}  # fmt: skip
ENGINE: dict[str, Any] = {"provider": "simulated", "step_ms": 20.0, "max_num_seqs": 4, "num_kv_blocks": 512}


def ask(max_tokens: int, **more: Any) -> GenerateRequest:
    return GenerateRequest(text_input="Once upon a time there was a fox", max_tokens=max_tokens, stream=True, **more)


def replayed(name: str) -> Callable[[], str]:
    """Return the page of an exporter, whose counters go on."""
    text, began_s = (PAGES / f"{name}.txt").read_text(), time.monotonic()

    def page() -> str:
        passed_s = time.monotonic() - began_s
        return text.replace("{energy_mj}", f"{500_000 * passed_s:.0f}").replace("{idle_s}", f"{0.4 * passed_s:.3f}")

    return page


def test_alerts_fire_and_are_resolved_up_to_alertmanager(tmp_path: Path) -> None:
    # Four seats, 25 steps of 5 ms a request: 32 requests a second, and 60 callers wait two seconds.
    text = deployment_text("alerts", engine=ENGINE | {"step_ms": 5.0}, admission={})
    server = RunningServer(text, tmp_path / "server")
    ports = free_ports(2)
    targets = {"trireme": [f"127.0.0.1:{server.metrics_port}"]}
    with server, LocalPrometheus(tmp_path, targets, ports=(ports[0], ports[1]), is_fast=True) as prometheus:
        wait_until(lambda: bool(prometheus.query("trireme_engine_up == 1")), 20)
        assert prometheus.firing() <= {"TriremeNoData"}, "it may have looked before the first scrape"
        wait_until(lambda: prometheus.firing() == set(), 20)

        of_load = {"TriremeTtftP99High", "TriremeErrorRateHigh", "TriremeQueueGrowing"}
        with steady_load(server.url, [ask(25), ask(25), ask(25), ask(25, queue_timeout_ms=100)], num_callers=80):
            wait_until(lambda: of_load <= prometheus.firing(), 30)
        [told] = [alert for alert in prometheus.alerts() if alert["labels"]["alertname"] == "TriremeErrorRateHigh"]
        assert "% of the requests of five minutes ended in an error" in told["annotations"]["description"]
        wait_until(lambda: not of_load & prometheus.firing(), 30)

        with the_engine_killed_again_and_again(server):
            wait_until(lambda: "TriremeEngineDead" in prometheus.firing(), 20)
        wait_until(lambda: "TriremeEngineDead" not in prometheus.firing(), 20)

        server.stop()
        gone = {"TriremeNoData", "TriremeServerDown"}
        wait_until(lambda: gone <= prometheus.firing(), 20)
        with server:
            wait_until(lambda: not gone & prometheus.firing(), 20)


@contextmanager
def the_engine_killed_again_and_again(server: RunningServer) -> Iterator[None]:
    """Kill the engine as soon as there is one, as if it could not load."""
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.05):
            with suppress(ValueError, psutil.NoSuchProcess):  # there is none at this moment
                server.engine_process().kill()

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalPrometheus]:
    """Yield Prometheus at a loaded server with admission and a canary, and at replayed exporters."""
    folder = tmp_path_factory.mktemp("watched")
    release = {"engine": ENGINE | FIGURES, "admission": {"queue": {"max_requests": 2}}}
    canary = release | {"release": 2, "tokenizer": {"dir": str(DEMO)}}
    text = deployment_text("watched", endpoints=ENDPOINTS, canary=2, other_releases=[canary], **release)
    with ExitStack() as ending:
        server = ending.enter_context(RunningServer(text, folder))
        pages = {name: [ending.enter_context(metrics_page(replayed(name)))] for name in EXPORTERS}
        targets = {"trireme": [f"127.0.0.1:{server.metrics_port}"], **pages}
        ports = free_ports(2)
        prometheus = LocalPrometheus(folder / "prometheus", targets, ports=(ports[0], ports[1]), is_fast=True)
        ending.enter_context(prometheus)
        requests = [ask(12, priority=priority) for priority in (1, 2, 3)]
        models = ("ensemble", "ensemble_canary", "tensorrt_llm_bls")
        with steady_load(server.url, requests, num_callers=24, models=models):
            time.sleep(6)  # the longest window that a panel needs
            yield prometheus


def test_the_last_day_of_prometheus_tells_a_rollout_s_traffic(watched: LocalPrometheus) -> None:
    found: list[SeenTraffic] = []

    def is_told() -> bool:
        with suppress(Unknown):  # of too few requests, at first
            found.append(of_prometheus(watched.url, prefix=""))
        return bool(found)

    wait_until(is_told, 30)
    assert set(found[-1].spreads) == set(HISTOGRAMS)
    assert found[-1].shares["cut"] > 0.5  # each asks for as many tokens as it gets
    with pytest.raises(Unknown, match="0 requests in the last day are too few"):
        of_prometheus(watched.url, prefix="", match='instance="elsewhere"')
    with pytest.raises(Unknown, match="answers HTTP 400"):
        of_prometheus(watched.url, prefix="", match="no matcher")


@pytest.mark.parametrize("dashboard", dashboards(Objectives()).values(), ids=lambda dashboard: dashboard.uid)
def test_every_query_of_every_panel_has_data(watched: LocalPrometheus, dashboard: Dashboard) -> None:
    queries = {
        filled_in(expr, dashboard, window="5s"): panel.title
        for panel in dashboard.panels
        for expr in panel.queries.values()
    }

    def have_all_had_data() -> bool:
        for expr in [expr for expr in queries if has_data(watched, expr)]:
            del queries[expr]
        return not queries

    with suppress(AssertionError):  # a busy machine may scrape too late for the shortest windows, now and then
        wait_until(have_all_had_data, 15)
    assert queries == {}


def has_data(prometheus: LocalPrometheus, expr: str) -> bool:
    """Return whether a sample is a number."""
    return any(math.isfinite(float(sample["value"][1])) for sample in prometheus.query(expr))


def test_a_query_of_what_does_not_exist_is_empty(watched: LocalPrometheus) -> None:
    assert not has_data(watched, "trireme_no_such_metric")
    assert not has_data(watched, "0 * trireme_engine_up / 0")


def test_what_prometheus_works_out_is_what_the_engine_did(watched: LocalPrometheus) -> None:
    """The spec says how long a step takes: 20 ms, 50 us a sequence, 20 us a prompt token; less the loop's own time."""
    step_s = value(watched, 'engine:trireme_step_seconds:mean1m{version="1"}')
    assert 0.016 <= step_s < 0.1
    assert 1 <= value(watched, 'engine:trireme_batch_sequences:mean1m{version="1"}') <= 4
    # Nearly all that a step reads are weights, 10^8 bytes, and 10^11 can be read in a second.
    read_s = value(watched, 'engine:trireme_mbu:ratio_rate1m{version="1"} * engine:trireme_step_seconds:mean1m')
    assert read_s == pytest.approx(1e8 / 1e11, rel=0.05)


def value(prometheus: LocalPrometheus, expr: str) -> float:
    [sample] = prometheus.query(expr)
    return float(sample["value"][1])
