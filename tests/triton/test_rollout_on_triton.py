# SPDX-License-Identifier: Apache-2.0
"""`trireme rollout` on the real server, under 32 streams: promoted or rolled back, whoever dies on the way."""

import contextlib
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from routed_load import RoutedLoad
from running_server import PROJECT, RunningServer, deployment_text
from streams_under_change import answers

from benchmarks.free_ports import free_ports
from benchmarks.report import write_result
from clients.rollout.server_control import ServerControl
from clients.rollout.store import Store

ENGINE: dict[str, Any] = {"provider": "simulated", "step_ms": 4.0, "max_num_seqs": 64, "num_kv_blocks": 4096}
# What takes seconds here; the gate's own figures are measured by benchmarks.gate_trials.
GATE = {"min_requests": 50, "effects": {"ttft": 0.9, "tpot": 0.9, "e2e_per_token": 0.9, "slow": 0.2, "errors": 0.1,
        "empty": 0.1, "looping": 0.1, "output_tokens": 0.5, "cut": 0.5}}  # fmt: skip
PATIENCE_S = 120.0
DEMO_MODEL = PROJECT / "examples/demo_model/openvino/target"


class Site:
    """A server that serves release 1, candidates, and the command that rolls them out."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.folder = server.folder
        [self.port] = free_ports(1)
        self.split_url = f"http://127.0.0.1:{self.port}"
        (self.folder / "gate.yaml").write_text(yaml.safe_dump(GATE))

    def candidate(self, **engine: object) -> str:
        path = self.folder / f"candidate_{random.randrange(10**9)}.yaml"
        path.write_text(yaml.safe_dump({"engine": engine}))
        return str(path)

    def rollout(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "trireme", "rollout", *arguments],
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def start(self, candidate: str, *options: str) -> subprocess.Popen[str]:
        return self.rollout(
            "start", candidate, "--port", str(self.port), "--gate", "gate.yaml", "--steps", "5,50,100",
            "--lease-s", "1", "--step-requests", "20", *options,
        )  # fmt: skip

    def begin(self, seed: int = 2) -> subprocess.Popen[str]:
        """A rollout of a good release that is on record."""
        before = self.num_rollouts()
        running = self.start(self.candidate(seed=seed))
        while self.num_rollouts() == before:
            assert running.poll() is None, running.communicate()[0]
            time.sleep(0.05)
        return running

    def go_on(self) -> subprocess.Popen[str]:
        return self.rollout("run", "--port", str(self.port))

    def num_rollouts(self) -> int:
        path = self.folder / "build" / "live" / "rollouts.sqlite"
        if not path.exists():
            return 0
        with Store(path) as store:
            return len(store.rollouts())

    def status(self) -> dict[str, Any]:
        done = self.rollout("status", "--json")
        text, _ = done.communicate(timeout=PATIENCE_S)
        assert done.returncode == 0, text
        return dict(json.loads(text))

    def served(self) -> Mapping[str, Any]:
        models: Any = ServerControl(self.folder / "build" / "live" / "control.sock").ask("status")["models"]
        return dict(models[0])


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    text = deployment_text("live", engine=ENGINE | {"seed": 1}, triton={"restart_backoff_s": 0.0, "max_restarts": 100})
    with RunningServer(text, tmp_path, options=("--ready-timeout-s", "30")) as server:
        yield Site(server)


def said_by(seed: int, folder: Path) -> dict[str, str]:
    """What the release of a seed says, from a server of its own."""
    with RunningServer(deployment_text("alone", engine=ENGINE | {"seed": seed}), folder) as server:
        return answers(server.url, "ensemble")


def test_a_canary_from_5_to_100_percent_under_32_streams(site: Site, tmp_path: Path) -> None:
    by_release = {1: answers(site.server.url, "ensemble"), 2: said_by(2, tmp_path / "alone")}
    stable_pid = site.served()["engine_pids"]["1"]
    with RoutedLoad(site.server.url, site.split_url, by_release) as load:
        running = site.start(site.candidate(seed=2))
        while running.poll() is None and "1" in (pids := site.served()["engine_pids"]):
            assert pids["1"] == stable_pid
            time.sleep(0.5)
        text, _ = running.communicate(timeout=PATIENCE_S)
        time.sleep(1)
    assert running.returncode == 0, text
    assert (load.wrong, load.refused) == ([], [])
    assert load.num_answers[2] > 100
    served = site.served()
    assert (served["release"], served["canary"], list(served["engine_pids"])) == (2, None, ["2"])
    assert site.status()["phase"] == "promoted"


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"fault": {"kind": "crash"}}, "could not be started"),
        ({"fault": {"kind": "crash", "after_requests": 0}}, "could not be started"),
        ({"fault": {"kind": "hang", "after_requests": 0}, "watchdog_s": 2.0}, "could not be started"),
        ({"fault": {"kind": "crash", "after_requests": 80}}, "ended or was started again"),
        ({"step_ms": 16.0}, "TPOT|TTFT|end to end|end-to-end"),
    ],
    ids=[
        "crashes while it loads",
        "crashes on its first request",
        "hangs on its first request",
        "crashes under load",
        "four times as slow",
    ],
)
def test_a_bad_release_is_rolled_back_with_a_reason(site: Site, engine: dict[str, Any], reason: str) -> None:
    by_release = {1: answers(site.server.url, "ensemble")}
    by_release[2] = by_release[1]  # the same seed
    stable_pid = site.served()["engine_pids"]["1"]
    with RoutedLoad(site.server.url, site.split_url, by_release) as load:
        running = site.start(site.candidate(**engine))
        text, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 1, text
    found = site.status()
    assert found["phase"] == "rolled_back"
    assert re.search(reason, found["reason"]), text
    served = site.served()
    assert (served["release"], served["canary"], served["engine_pids"]) == (1, None, {"1": stable_pid})
    # A stream on an engine that dies is told so; nothing else fails.
    assert all("engine" in one or "UNAVAILABLE" in one for one in [*load.wrong, *load.refused]), load.wrong


def test_a_corrupt_engine_is_rolled_back_and_the_real_model_serves_on(tmp_path: Path) -> None:
    corrupt = tmp_path / "corrupt"
    shutil.copytree(DEMO_MODEL, corrupt)
    weights = corrupt / "openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    engine = {"provider": "openvino", "dir": str(DEMO_MODEL), "max_seq_len": 512, "num_kv_blocks": 64}
    with RunningServer(deployment_text("live", engine=engine), tmp_path / "server") as server:
        site = Site(server)
        before = answers(server.url, "ensemble")
        running = site.start(site.candidate(dir=str(corrupt)))
        text, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 1, text
        assert "could not be started" in site.status()["reason"]
        assert answers(server.url, "ensemble") == before
        assert (site.served()["release"], list(site.served()["engine_pids"])) == (1, ["1"])
        assert server.is_ready()


def one_release_serves_all(site: Site) -> None:
    served = site.served()
    assert served["canary"] is None
    assert list(served["engine_pids"]) == [str(served["release"])]
    found = site.status()
    stays = {"promoted": "candidate", "rolled_back": "stable"}[found["phase"]]
    assert served["release"] == found["plan"][stays]


def kill_the_rollout(site: Site, kills: int, seed: int, *, engine_seed: int = 2) -> str:
    """Kill its process at random moments, and go on each time; what the last said."""
    rng = random.Random(seed)
    running = site.begin(seed=engine_seed)
    for _ in range(kills):
        time.sleep(rng.uniform(0.0, 6.0))
        if running.poll() is not None:
            break
        running.send_signal(signal.SIGKILL)
        running.communicate()
        running = site.go_on()
    text, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode in (0, 1), text
    return text


def test_killed_at_any_moment_a_rollout_goes_on(site: Site, tmp_path: Path) -> None:
    by_release = {1: answers(site.server.url, "ensemble"), 2: said_by(2, tmp_path / "alone")}
    with RoutedLoad(site.server.url, site.split_url, by_release) as load:
        text = kill_the_rollout(site, kills=4, seed=1)
        time.sleep(1)
    assert (load.wrong, load.refused) == ([], []), text
    one_release_serves_all(site)


def kill_triton(site: Site, kills: int, seed: int, *, engine_seed: int = 2) -> None:
    """Kill the server at random moments of a rollout."""
    rng = random.Random(seed)
    running = site.begin(seed=engine_seed)
    for _ in range(kills):
        time.sleep(rng.uniform(0.0, 8.0))
        with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # it is being started again
            site.server.tritonserver().kill()
    text, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode in (0, 1), text


def test_triton_killed_while_a_rollout_runs(site: Site) -> None:
    by_release = {1: answers(site.server.url, "ensemble")}
    with RoutedLoad(site.server.url, site.split_url, by_release, num_streams=8):  # its streams end with their server
        kill_triton(site, kills=2, seed=3)
    one_release_serves_all(site)
    assert answers(site.server.url, "ensemble")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thirty_kills_of_the_rollout_and_ten_of_triton(site: Site, tmp_path: Path) -> None:
    by_seed = {1: answers(site.server.url, "ensemble"), 2: said_by(2, tmp_path / "alone")}
    ends: Counter[str] = Counter()
    with RoutedLoad(site.server.url, site.split_url, by_seed) as load:
        for number in range(10):
            text = kill_the_rollout(site, kills=3, seed=10 + number, engine_seed=2 - number % 2)
            one_release_serves_all(site)
            assert (load.wrong, load.refused) == ([], []), text
            ends[f"rollout killed: {site.status()['phase']}"] += 1
    with RoutedLoad(site.server.url, site.split_url, by_seed, num_streams=8):
        for number in range(5):
            kill_triton(site, kills=2, seed=30 + number, engine_seed=2 - number % 2)
            one_release_serves_all(site)
            ends[f"Triton killed: {site.status()['phase']}"] += 1
    assert answers(site.server.url, "ensemble")
    write_result("rollout_kills", {"benchmark": "rollout_kills", "kills": {"rollout": 30, "triton": 10}, "ends": ends})
