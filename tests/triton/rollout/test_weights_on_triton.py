# SPDX-License-Identifier: Apache-2.0
"""A rollout between two real servers behind the real Envoy, whose weights it moves; every answer is checked."""

import contextlib
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
import yaml
from envoy_here import ENVOY, needs_envoy
from kubernetes_api import Cluster
from kubernetes_api import running as running_api
from remote_controller import KEY, Controller, RemoteAddress
from rollout_site import Site, Texts, serving
from routes_of_chart import grpc_route, weights_of
from running_server import RunningServer
from streams_under_change import Streams

from clients.rollout.export.envoy_routes import routes_file
from clients.rollout.records.store import Store
from clients.rollout.weights.envoy_admin import weight_in_force
from ensemble_configs.split.outcome_journal import JournalLine
from trireme.base.durable_files import write_atomically
from trireme.base.errors import Unavailable
from trireme.base.free_ports import free_ports

pytestmark = needs_envoy


@pytest.fixture
def second(tmp_path: Path) -> Iterator[RunningServer]:
    with serving(tmp_path / "second") as server:
        yield server


class Between:
    """An Envoy before both servers, and the options with which a rollout moves its weights.

    Attributes:
        environment: of the rollout's process.
    """

    marker = "envoy:"

    def __init__(self, site: Site, second: RunningServer) -> None:
        self._folder = site.folder
        self.environment: dict[str, str] = {}
        self.routes = site.folder / "routes.yaml"
        listen, admin = free_ports(2)
        self.url, self.admin = f"localhost:{listen}", f"127.0.0.1:{admin}"
        site.done("export", "--format", "envoy-routes", "--share", "0", "--out", str(self.routes))
        endpoints = ["--stable-url", f"127.0.0.1:{site.server.grpc_port}"]
        endpoints += ["--candidate-url", f"127.0.0.1:{second.grpc_port}", "--routes-file", str(self.routes)]
        own = ["--listen", f"127.0.0.1:{listen}", "--admin", self.admin]
        site.done("export", "--format", "envoy", *endpoints, *own, "--out", "envoy.yaml")
        self.options = ["--second-server", str(second.folder / "build" / "live"), *self.router()]

    def router(self) -> list[str]:
        return ["--weights", f"envoy:{self.routes}", "--envoy-admin", self.admin]

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
        while not self.goes_by(weight):
            assert time.monotonic() < end_s
            time.sleep(0.05)

    def goes_by(self, weight: int) -> bool:
        try:
            return weight_in_force(self.admin) == weight
        except Unavailable:
            return False

    def is_left(self) -> bool:
        """Return whether nothing of the rollout is beside the weights."""
        return "Weights of" not in self.routes.read_text()


class Gateway(Between):
    """An Envoy that does what a GRPCRoute says, and writes its status once it does."""

    marker = "gateway:"
    _KEY = ("grpcroutes", "llm", "chat")

    def router(self) -> list[str]:
        return ["--weights", "gateway:llm/chat", "--stable-service", "chat", "--candidate-service", "chat-2"]

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.cluster = Cluster()
        self.cluster.takes_after_s = None
        self.cluster.create(grpc_route())
        self._ends = threading.Event()
        with running_api(self.cluster) as server, super().running():
            config = self._folder / "kubeconfig"
            user, where = {"name": "me", "user": {"token": "t"}}, {"name": "here", "cluster": {"server": server.url}}
            context = {"name": "here", "context": {"cluster": "here", "user": "me"}}
            written = {"apiVersion": "v1", "kind": "Config", "current-context": "here"}
            config.write_text(yaml.safe_dump({**written, "users": [user], "clusters": [where], "contexts": [context]}))
            self.environment["KUBECONFIG"] = str(config)
            thread = threading.Thread(target=self._follow)
            thread.start()
            try:
                yield
            finally:
                self._ends.set()
                thread.join()

    def _follow(self) -> None:
        seen = 0
        while not self._ends.wait(0.05):
            route = self.cluster.get(*self._KEY)
            if route["metadata"]["generation"] != seen:
                weight = weights_of(route)[3][1]
                assert weight is not None
                write_atomically(self.routes, yaml.safe_dump(routes_file(weight / 10_000, salt="a")))
                self.wait_for(weight)
                seen = route["metadata"]["generation"]
                self.cluster.write_status(self._KEY, seen)

    def is_left(self) -> bool:
        return "trireme/rollout" not in self.cluster.get(*self._KEY)["metadata"]["annotations"]


@pytest.mark.soak
@pytest.mark.parametrize("kind", [Between, Gateway], ids=["envoy", "gateway"])
def test_a_promoted_release_takes_all_requests_at_a_router_over_the_death_of_the_rollouts_process(
    site: Site, second: RunningServer, texts: Texts, kind: type[Between], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = kind(site, second)
    by_release = {seed: texts[seed] for seed in (1, 2)}
    with router.running(), Streams(router.url, by_release, num_streams=16) as load:
        for name, value in router.environment.items():
            monkeypatch.setenv(name, value)
        running = site.start(site.candidate(seed=2), options=router.options)
        router.wait_for(2000)
        running.kill()
        said = running.communicate()[0]
        load.wait_for(2, 10)
        assert router.goes_by(2000), "the weights stay, and nobody judges"
        text = said + site.end_of(site.go_on())
        load.wait_for(2, 64)
    assert (load.wrong, load.refused) == ([], []), text
    served = site.served()
    assert (served["release"], served["canary"], list(served["engine_pids"])) == (2, None, ["2"])
    assert shares_said(text, router.marker) in (["0", "20", "20", "50", "100", "0"], ["0", "20", "50", "100", "0"])
    assert router.is_left()
    with Store(site.folder / "build" / "live" / "rollouts.sqlite") as store:
        [rollout] = store.rollouts()
        for step in (0, 1):
            evidence: Any = store.evidence(rollout.id, step)
            assert min(evidence["num_requests"]) >= 20, "both servers told how their requests ended"


class KeptLines:
    """The lines that servers have ever written in their journals, of which a reader removes what it has read."""

    def __init__(self, folder: Path, servers: Sequence[RunningServer]) -> None:
        self._folder = folder
        self._servers = servers
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._follow)

    def __enter__(self) -> Self:
        self._folder.mkdir()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ends.wait(0.05):
            for server in self._servers:
                for path in (server.folder / "build" / "live" / "outcomes").glob("*/*.jsonl"):
                    with contextlib.suppress(FileExistsError, FileNotFoundError):
                        (self._folder / path.name).hardlink_to(path)

    def num_by_arm(self, rollout: int) -> Counter[tuple[int, str]]:
        """Return the number of outcomes of a rollout, by step and arm."""
        lines = (line for path in self._folder.iterdir() for line in path.read_bytes().splitlines())
        found = [msgspec.json.decode(line, type=JournalLine) for line in lines]
        return Counter((line.step, line.outcome.arm) for line in found if line.rollout == rollout and line.outcome.arm)


def test_servers_on_machines_of_their_own_are_driven_by_https_alone(tmp_path: Path, texts: Texts) -> None:
    with contextlib.ExitStack() as held:
        sites, addresses = [], []
        for name, key in (("first", KEY), ("second", "a-key-of-the-second-0123456789")):
            (tmp_path / name).mkdir()
            addresses.append(RemoteAddress(tmp_path / name, key=key))
            server = held.enter_context(serving(tmp_path / name / "server", options=addresses[-1].options))
            sites.append(Site(server))
        first, second = sites
        controller = Controller(tmp_path / "controller", addresses[0].url, addresses[0].ca, key=KEY)
        held.enter_context(contextlib.closing(controller))
        shutil.copy(addresses[1].ca, controller.folder / "second.crt")
        (controller.folder / "second.txt").write_text("a-key-of-the-second-0123456789\n")
        other = ["--second-server", addresses[1].url, "--second-server-ca-file", "second.crt"]
        other += ["--second-server-token-file", "second.txt"]
        router = Between(first, second.server)
        held.enter_context(router.running())
        kept = held.enter_context(KeptLines(tmp_path / "lines", [first.server, second.server]))
        load = held.enter_context(Streams(router.url, {seed: texts[seed] for seed in (1, 2)}, num_streams=16))
        running = controller.start(*other, *router.router(), "--steps", "20,50,100", "--step-requests", "60")
        router.wait_for(2000)
        load.wait_for(2, 10)
        running.kill()
        said = running.communicate()[0]
        load.wait_for(2, 10)
        assert router.goes_by(2000), "the weights stay, and nobody judges"
        said += controller.end_of(controller.rollout("run", "--port", str(controller.port)), code=0)
        load.wait_for(2, 64)
        assert router.goes_by(0)
        assert "promoted: release 2 serves all" in said
        assert (load.wrong, load.refused) == ([], []), said
        assert router.is_left()
        for site in sites:
            served = site.served()
            assert (served["release"], served["canary"], list(served["engine_pids"])) == (2, None, ["2"])
        with Store(controller.store) as store:
            [rollout] = store.rollouts()
            counted = Counter[tuple[int, str]]()
            for step in (0, 1, 2):
                evidence: Mapping[str, Any] = store.evidence(rollout.id, step) or {"num_requests": (0, 0)}
                for arm, number in zip(("candidate", "baseline"), evidence["num_requests"], strict=True):
                    counted[step, arm] += int(number)
        written = kept.num_by_arm(rollout.id)
        assert +counted == +written, "each outcome counts once"
        assert all(written[step, arm] >= 60 for step in (0, 1) for arm in ("candidate", "baseline"))


def test_a_candidate_that_crashes_under_load_loses_its_weight(site: Site, second: RunningServer, texts: Texts) -> None:
    router = Between(site, second)
    pid = site.served()["engine_pids"]["1"]
    with router.running(), Streams(router.url, {1: texts[1]}, num_streams=16) as load:
        fault = {"kind": "crash", "after_requests": 120}
        text = site.end_of(running := site.start(site.candidate(fault=fault), options=router.options))
        load.wait_for(1, 64)
        assert router.goes_by(0)
    assert running.returncode == 1, text
    assert site.served()["engine_pids"] == {"1": pid}
    # A stream on the engine that dies is told so; nothing else fails.
    assert all("engine" in one or "UNAVAILABLE" in one for one in [*load.wrong, *load.refused]), load.wrong


def shares_said(text: str, marker: str) -> list[str]:
    """Return the candidate's shares that a rollout said it had moved to, one after the other."""
    end = " % to the candidate"
    lines = [line for line in text.splitlines() if line.startswith(marker) and line.endswith(end)]
    return [line.removesuffix(end).rpartition(" ")[2] for line in lines]
