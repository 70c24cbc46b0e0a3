# SPDX-License-Identifier: Apache-2.0
"""Servers as the chart's pods run them, at addresses of their own on this machine, and the chart's Envoy before them.

What a pod's container runs is taken from the rendered chart. It is told its address, for here all share one network,
and where this project lies.
"""

import contextlib
import itertools
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import psutil
import yaml
from chart_here import IMAGES, deployment_values, merged, render
from envoy_of_chart import EnvoyOfChart
from pod_here import pod_template

from ensemble_configs.render.helm_values import IMAGE_ROOT

PROJECT = Path(__file__).resolve().parents[3]
START_S = 90.0
_addresses = (f"127.0.{third}.{fourth}" for third, fourth in itertools.product(range(1, 255), range(2, 255)))


class Replica:
    """A replica that runs from its construction on, as a new pod does."""

    def __init__(self, site: "Site", server: str) -> None:
        self.server = server
        self.host = next(_addresses)
        self.folder = site.folder / self.host
        self.folder.mkdir()
        self._site = site
        template = pod_template(site.documents, server)
        self.spec = template["spec"]
        container = self.spec["containers"][0]
        self._health = f"http://{self.host}:{site.envoy.ports['health']}"
        served = template["metadata"]["annotations"]["trireme/deployment"].replace(str(IMAGE_ROOT), str(PROJECT))
        (self.folder / "deployment.yaml").write_text(served)
        self._hook = container["lifecycle"]["preStop"]["exec"]["command"]
        self.log_path = self.folder / "container.log"
        command = [
            str(self.folder / "deployment.yaml") if word.endswith("deployment.yaml") else word
            for word in container["command"]
        ]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*self._here(command), "--host", self.host], cwd=self.folder, stdout=log, stderr=log
            )

    @staticmethod
    def _here(command: list[str]) -> list[str]:
        assert command[0] == "trireme"
        return [sys.executable, "-m", *command]

    def wait_until_ready(self) -> None:
        """Wait until the readiness probe succeeds; then the Service has its address."""
        deadline_s = time.monotonic() + START_S
        while not self._is_ready():
            assert self.process.poll() is None, self.log_path.read_text()
            assert time.monotonic() < deadline_s, self.log_path.read_text()
            time.sleep(0.05)
        self._site.envoy.pods[self.server].append(self.host)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._health}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def leave_service(self) -> None:
        """Take the address out of the Service, as Kubernetes does for a pod that goes, or is not ready."""
        with contextlib.suppress(ValueError):
            self._site.envoy.pods[self.server].remove(self.host)

    def delete(self) -> int:
        """End as Kubernetes ends a pod, and return the exit status.

        Its address goes, then come the hook and the signal, within its grace.
        """
        ends_s = time.monotonic() + self.spec["terminationGracePeriodSeconds"]
        self.leave_service()
        hook = subprocess.run(
            self._here(self._hook),
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=ends_s - time.monotonic(),
        )
        assert hook.returncode == 0, hook.stdout + hook.stderr + self.log_path.read_text()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(ends_s - time.monotonic())

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the replica."""
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def signal(self, number: int) -> None:
        """Send a signal to each of its processes: SIGKILL is a node that is gone, SIGSTOP one that hangs."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def end(self) -> None:
        """End at once, whatever it does."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.signal(signal.SIGKILL)
        self.process.wait(30)


class Site:
    """A deployment file on the chart with Envoy.

    Attributes:
        documents: what the chart makes.
        replicas: of each server, those that are meant to run.
    """

    def __init__(self, folder: Path, deployment: Mapping[str, Any], values: Mapping[str, Any] | None = None) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "deployment.yaml"
        path.write_text(yaml.safe_dump(dict(deployment)))
        self.envoy = EnvoyOfChart(folder / "envoy", merged(deployment_values(path), IMAGES, values or {}))
        self.documents = render(self.envoy.values)
        self.replicas: dict[str, list[Replica]] = {server: [] for server in self.envoy.pods}

    def grow(self, server: str, count: int = 1) -> list[Replica]:
        """Start so many more, side by side, and wait until each is ready."""
        new = [Replica(self, server) for _ in range(count)]
        self.replicas[server] += new
        for replica in new:
            replica.wait_until_ready()
        return new

    def url_of(self, replica: Replica) -> str:
        """Return the replica's own address, past Envoy."""
        return f"{replica.host}:{self.envoy.ports['grpc']}"

    @contextlib.contextmanager
    def run(self, **counts: int) -> Iterator[Self]:
        """Run with so many replicas of each server."""
        try:
            for server, count in counts.items():
                self.grow(server.replace("_", "-"), count)
            with self.envoy.run():
                yield self
        finally:
            for replica in [one for all_of_it in self.replicas.values() for one in all_of_it]:
                replica.end()
