# SPDX-License-Identifier: Apache-2.0
"""A rollout between two real servers behind the real Envoy, whose weights it moves; every answer is checked."""

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from envoy_here import ENVOY, needs_envoy
from rollout_site import Site, Texts, serving
from running_server import RunningServer
from streams_under_change import Streams

from clients.rollout.records.store import Store
from clients.rollout.weights.envoy_admin import weight_in_force
from trireme.base.errors import Unavailable
from trireme.base.free_ports import free_ports

pytestmark = needs_envoy


@pytest.fixture
def second(tmp_path: Path) -> Iterator[RunningServer]:
    with serving(tmp_path / "second") as server:
        yield server


class Gateway:
    """An Envoy before both servers, and the options with which a rollout moves its weights."""

    def __init__(self, site: Site, second: RunningServer) -> None:
        self._folder = site.folder
        self.routes = site.folder / "routes.yaml"
        listen, admin = free_ports(2)
        self.url, self.admin = f"localhost:{listen}", f"127.0.0.1:{admin}"
        site.done("export", "--format", "envoy-routes", "--share", "0", "--out", str(self.routes))
        endpoints = ["--stable-url", f"127.0.0.1:{site.server.grpc_port}"]
        endpoints += ["--candidate-url", f"127.0.0.1:{second.grpc_port}", "--routes-file", str(self.routes)]
        own = ["--listen", f"127.0.0.1:{listen}", "--admin", self.admin]
        site.done("export", "--format", "envoy", *endpoints, *own, "--out", "envoy.yaml")
        router = ["--weights", f"envoy:{self.routes}", "--envoy-admin", self.admin]
        self.options = ["--second-server", str(second.folder / "build" / "live"), *router]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        command = [str(ENVOY), "-c", "envoy.yaml", "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]
        with (self._folder / "envoy.log").open("w") as log:
            process = subprocess.Popen(command, cwd=self._folder, stdout=log, stderr=log)
        try:
            self.wait_for(0)
            yield
            assert process.poll() is None, (self._folder / "envoy.log").read_text()
        finally:
            process.terminate()
            process.wait(20)

    def wait_for(self, weight: int) -> None:
        end_s = time.monotonic() + 60
        while True:
            with contextlib.suppress(Unavailable):
                if weight_in_force(self.admin) == weight:
                    return
            assert time.monotonic() < end_s
            time.sleep(0.05)


def test_a_promoted_release_takes_all_requests_at_envoy_over_the_death_of_the_rollouts_process(
    site: Site, second: RunningServer, texts: Texts
) -> None:
    gateway = Gateway(site, second)
    by_release = {seed: texts[seed] for seed in (1, 2)}
    with gateway.running(), Streams(gateway.url, by_release, num_streams=16) as load:
        running = site.start(site.candidate(seed=2), options=gateway.options)
        gateway.wait_for(2000)
        running.kill()
        said = running.communicate()[0]
        load.wait_for(2, 10)
        assert weight_in_force(gateway.admin) == 2000, "the weights stay, and nobody judges"
        text = said + site.end_of(site.go_on())
        load.wait_for(2, 64)
    assert "20 % to the candidate" in text, text
    assert (load.wrong, load.refused) == ([], [])
    served = site.served()
    assert (served["release"], served["canary"], list(served["engine_pids"])) == (2, None, ["2"])
    assert weights_of(text) == ["0", "20", "20", "50", "100", "0"]
    assert "Weights of" not in gateway.routes.read_text()
    with Store(site.folder / "build" / "live" / "rollouts.sqlite") as store:
        [rollout] = store.rollouts()
        for step in (0, 1):
            evidence = store.evidence(rollout.id, step)
            assert evidence is not None
            assert min(map(int, evidence["num_requests"])) >= 20, "both servers told how their requests ended"  # type: ignore[call-overload]


def test_a_candidate_that_crashes_under_load_loses_its_weight(site: Site, second: RunningServer, texts: Texts) -> None:
    gateway = Gateway(site, second)
    pid = site.served()["engine_pids"]["1"]
    with gateway.running(), Streams(gateway.url, {1: texts[1]}, num_streams=16) as load:
        fault = {"kind": "crash", "after_requests": 120}
        text = site.end_of(running := site.start(site.candidate(fault=fault), options=gateway.options))
        load.wait_for(1, 64)
        assert weight_in_force(gateway.admin) == 0
    assert running.returncode == 1, text
    assert site.served()["engine_pids"] == {"1": pid}
    # A stream on the engine that dies is told so; nothing else fails.
    assert all("engine" in one or "UNAVAILABLE" in one for one in [*load.wrong, *load.refused]), load.wrong


def weights_of(text: str) -> list[str]:
    """Return the candidate's shares that a rollout said it had moved to, one after the other."""
    marker = " % to the candidate"
    lines = [line for line in text.splitlines() if line.startswith("envoy:") and line.endswith(marker)]
    return [line.removesuffix(marker).rpartition(" ")[2] for line in lines]
