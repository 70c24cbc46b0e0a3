# SPDX-License-Identifier: Apache-2.0
"""A hostile client beside good ones: nothing of the server ends, no good request fails or waits long, memory returns.

Seeded: some seconds here, an hour in the soak, whose figures are committed.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import psutil
import pytest
from process_words import words_of
from running_server import SUPPORT, RunningServer, deployment_text

from benchmarks.support.report import environment, write_result
from clients.streaming import GenerateRequest, TritonClient

PROGRAM = SUPPORT / "hostile_client.py"
ENGINE = {"provider": "simulated", "step_ms": 10.0, "max_num_seqs": 64, "num_kv_blocks": 4096}
NUM_TOKENS = 20
MODELS = ["ensemble", "ensemble_graph", "tensorrt_llm_bls"]
SETTLE_S = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(deployment_text("attacked", engine=ENGINE, endpoints=MODELS), tmp_path / "server") as started:
        yield started


class ControlStream:
    """Good requests, one after the other, of each text model in turn."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask)
        self.latencies_s: list[float] = []
        self.failures: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def p99_s(self) -> float:
        return statistics.quantiles(self.latencies_s, n=100)[98]

    def _ask(self) -> None:
        with TritonClient(self._url) as client:
            for model in itertools.cycle(MODELS):
                if self._is_over.wait(0.05):
                    return
                request = GenerateRequest(
                    text_input="hello you", max_tokens=NUM_TOKENS, stream=True, return_num_output_tokens=True
                )
                start_s = time.monotonic()
                try:
                    chunks = list(client.generate(request, model=model))
                    if (found := sum(chunk.num_output_tokens or 0 for chunk in chunks)) != NUM_TOKENS:
                        self.failures.append(f"{model}: {found} tokens")
                except Exception as exc:  # each is a failure of the test
                    self.failures.append(f"{model}: {exc}")
                self.latencies_s.append(time.monotonic() - start_s)


def control(server: RunningServer, seconds: float) -> ControlStream:
    with ControlStream(server.url) as stream:
        time.sleep(seconds)
    return stream


def memory_of(server: RunningServer) -> dict[str, int]:
    """Return the bytes that each process has for itself, by what it is."""
    found: dict[str, int] = {}
    for process in [psutil.Process(server.process.pid), *server.descendants()]:
        command = words_of(process)
        name = next((part for part in command if part.endswith("/model.py")), " ".join(command[:4]))
        name = name.removesuffix("/1/model.py").rpartition("/")[2] if name.endswith("model.py") else name
        if "serving.frontend.process" in command:
            name = "frontend " + json.loads(command[-2])["kind"]
        found[name] = process.memory_full_info().uss
    return found


def attack(
    server: RunningServer, *, seconds: float, seed: int, slow: int, rate: float
) -> tuple[dict[str, Any], ControlStream]:
    """Return what a hostile client sent and what came of that, and the good requests beside it."""
    ports = [f"--{name}={getattr(server, f'{name}_port')}" for name in ("http", "grpc", "metrics")]
    command = [sys.executable, "-I", str(PROGRAM), *ports, f"--seed={seed}", f"--slow={slow}", f"--rate={rate}"]
    processes = server.descendants()
    with ControlStream(server.url) as stream:
        # As from another machine: it does not take the server's two cores before the server.
        run = subprocess.run(
            [*command, f"--seconds={seconds}"], check=True, capture_output=True, preexec_fn=lambda: os.nice(10)
        )
    hostile = json.loads(run.stdout)
    num_ended = hostile.pop("slow connections that were ended", 0)
    figures = {
        "seed": seed,
        "seconds": seconds,
        "num_slow_connections": slow,
        "num_hostile_requests": sum(hostile.values()),
        "num_slow_connections_ended": num_ended,
        "hostile_requests": hostile,
        "num_good_requests": len(stream.latencies_s),
        "failures": stream.failures,
        "processes_replaced": [str(each) for each in set(server.descendants()) ^ set(processes)],
        "is_restarted": "starting it again" in server.log(),
    }
    return figures, stream


def measured_attack(server: RunningServer, *, seconds: float, **how: Any) -> dict[str, Any]:
    """Return the figures of an attack beside those of calm before and after it."""
    calm_s = seconds / 40
    attack(server, seconds=seconds / 10, **how)  # for what is allocated at the first requests of a kind and kept
    time.sleep(SETTLE_S)
    control(server, 10)
    calm, memory = control(server, calm_s), memory_of(server)
    figures, stream = attack(server, seconds=seconds, **how)
    time.sleep(SETTLE_S)
    after = control(server, calm_s)
    return figures | {
        "failures": [*calm.failures, *stream.failures, *after.failures],
        "p99_ratio": stream.p99_s() / calm.p99_s(),
        "p50_ratio": statistics.median(stream.latencies_s) / statistics.median(calm.latencies_s),
        "memory_mib_before": {name: size / 2**20 for name, size in memory.items()},
        "memory_mib_after": {name: size / 2**20 for name, size in memory_of(server).items()},
    }


def memory_growth(figures: dict[str, Any]) -> float:
    before, after = (sum(figures[f"memory_mib_{when}"].values()) for when in ("before", "after"))
    return float(after / before)


def check(figures: dict[str, Any]) -> None:
    assert not figures["is_restarted"]
    assert figures["processes_replaced"] == []
    assert figures["failures"] == []


def test_a_hostile_client_ends_nothing_and_fails_no_good_request(server: RunningServer) -> None:
    figures, _ = attack(server, seconds=20, seed=20261124, slow=100, rate=8)
    check(figures)
    assert figures["num_hostile_requests"] > 50


@pytest.mark.soak
@pytest.mark.quiet
@pytest.mark.hour
@pytest.mark.timeout(7200)
def test_an_hour_of_a_hostile_client(server: RunningServer) -> None:
    figures = measured_attack(server, seconds=3600, seed=20261124, slow=500, rate=5)
    where = environment(triton_http=f"127.0.0.1:{server.http_port}")
    write_result("hostile_client", {"environment": where, **figures})
    check(figures)
    assert figures["num_hostile_requests"] >= 10_000
    assert figures["p99_ratio"] <= 2
    assert memory_growth(figures) <= 1.05
