# SPDX-License-Identifier: Apache-2.0
"""`trireme bench` on the running server: the tools ask the same and agree on what they see."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from running_server import PROJECT, RunningServer, deployment_text

ENGINE: dict[str, Any] = {"provider": "simulated", "step_ms": 10.0, "max_num_seqs": 16, "num_kv_blocks": 2048}
TOKENIZER = str(PROJECT / "examples/demo_model/target")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Yield a server with an engine whose steps take 10 ms."""
    with RunningServer(deployment_text("bench", engine=ENGINE), tmp_path_factory.mktemp("bench")) as started:
        yield started


def bench(*args: object, timeout_s: float = 240.0) -> str:
    command = [sys.executable, "-m", "trireme", "bench", *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def where(server: RunningServer) -> list[str]:
    return ["--url", server.url, "--metrics", f"http://127.0.0.1:{server.metrics_port}/metrics", "--json"]


def p50(found: Any, name: str) -> float:
    return float(found["latencies"][name]["percentiles"]["50"])


def test_all_tools_agree_on_the_same_load(server: RunningServer, tmp_path: Path) -> None:
    load = ["--requests", 40, "--isl", 32, "--osl", 24, *where(server)]
    found = {
        "ours": json.loads(bench("run", "--concurrency", 4, "--tokenizer", TOKENIZER, *load, "--out", tmp_path / "a")),
        "locust": json.loads(bench("locust", "--users", 4, "--tokenizer", TOKENIZER, *load, "--out", tmp_path / "b")),
    }
    if platform.machine() == "x86_64":  # which perf_analyzer is made for
        args = ["--concurrency", 4, "--tokenizer", TOKENIZER, *load, "--out", tmp_path / "c"]
        found["perf_analyzer"] = json.loads(bench("perf-analyzer", *args))
    for name, figures in found.items():
        assert figures["ends"] == {"done": figures["num_requests"]}, name
        assert figures["osl"]["mean"] == 24, name
        assert figures["isl"]["mean"] == 32, name
        # 23 steps of 10 ms after the first token; what a busy machine adds is the same for all.
        assert p50(figures, "e2e") == pytest.approx(p50(found["ours"], "e2e"), rel=0.15), name
        assert p50(figures, "tpot") == pytest.approx(p50(found["ours"], "tpot"), rel=0.15), name
        assert figures["server"]["batch_max"] <= 16, name
    runs = [path for path in (tmp_path / "a", tmp_path / "b", tmp_path / "c") if path.exists()]
    bench("report", *runs, "--slo", "ttft=1000", "--out", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "requests in the batch" in page
    assert "locust 2." in page


@pytest.mark.soak
@pytest.mark.quiet
@pytest.mark.skipif(platform.machine() != "x86_64", reason="perf_analyzer is made for x86_64 only")
def test_genai_perf_agrees_on_a_load_like_it(server: RunningServer, tmp_path: Path) -> None:
    load = ["--requests", 60, "--concurrency", 4, "--tokenizer", TOKENIZER, "--isl", 32, "--osl", 24, *where(server)]
    ours = json.loads(bench("run", *load, "--out", tmp_path / "a"))
    theirs = json.loads(bench("genai-perf", *load, "--out", tmp_path / "b"))
    assert theirs["ends"] == {"done": theirs["num_requests"]}
    assert theirs["osl"]["mean"] == 24, "as the server counts them"
    for name in ("ttft", "tpot", "e2e"):
        assert p50(theirs, name) == pytest.approx(p50(ours, name), rel=0.25), name
    bench("report", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "r.html")
    assert "genai-perf" in (tmp_path / "r.html").read_text()


def test_an_open_loop_of_a_workload_file(server: RunningServer, tmp_path: Path) -> None:
    workload = tmp_path / "w.yaml"
    workload.write_text("kind: shared_prefix\nnum_prefixes: 1\nprefix_tokens: 256\nisl: {mean: 8}\nosl: {mean: 8}\n")
    args = ["--rate", 10, "--requests", 30, "--workload", workload, *where(server), "--out", tmp_path / "a"]
    figures = json.loads(bench("run", *args))
    assert figures["ends"] == {"done": figures["num_requests"]}
    assert figures["isl"]["mean"] == pytest.approx(264, rel=0.15)  # counted by words, without a tokenizer
    assert figures["client"]["lag_p99_ms"] is not None


@pytest.mark.soak
@pytest.mark.quiet
def test_the_capacity_of_an_engine_whose_capacity_is_known(server: RunningServer, tmp_path: Path) -> None:
    # 16 at a time, 40 steps of 10 ms each: at most 40 requests a second, a little less as a step grows with its batch.
    args = ["--slo", "ttft_p95=400", "--isl", 8, "--osl", 40, "--start", 20, "--trial", 2, "--precision", 0.3]
    found = json.loads(bench("capacity", *args, *where(server), "--without-users", "--out", tmp_path / "c"))
    assert 25 <= found["rate_per_s"] <= 48  # 40 in most runs; a queue that 47 make is short after two seconds
    assert [each["factor"] for each in found["degradation"]] == [1, 2, 3]
    assert max(each["over_peak"] for each in found["degradation"]) == 1
    assert all(each["num_requests"] for each in found["degradation"])
    assert 0 < found["alone"]["ttft_p50"] < 400
    names = {path.name for path in (tmp_path / "c").iterdir()}
    assert {"capacity.json", "report.html", "01-alone"} <= names
    assert {"1x", "2x", "3x"} <= {name.partition("-")[2] for name in names}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--rate", "1", "--concurrency", "1", "--requests", "1"], "--rate"),
        (["run", "--rate", "1", "--requests", "1", "--model", "none"], "none"),
        (["perf-analyzer", "--rate", "1", "--arrivals", "gamma"], "gamma"),
        (["capacity", "--slo", "ttft=5"], "needs a percentile"),
        (["locust", "--users", "1"], "--requests"),
    ],
)
def test_what_is_asked_wrongly_says_what_is_allowed(
    server: RunningServer, tmp_path: Path, args: list[str], said: str
) -> None:
    command = [sys.executable, "-m", "trireme", "bench", *args, "--url", server.url, "--out", str(tmp_path / "x")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "x").exists()
