# SPDX-License-Identifier: Apache-2.0
"""Our gateway before our server with a simulated engine, asked by OpenAI's API: `trireme serve --gateway`."""

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from benchmarks.peers.child_server import serving
from benchmarks.peers.cpu_parts import behind, cpu_by_part
from benchmarks.peers.peer import AskedServer, Started, is_ready
from benchmarks.peers.simulated import our_version, shown_settings, simulated_deployment
from clients.access import Access
from ensemble_configs.spec.deployment import DeploymentSpec
from trireme.base.free_ports import free_ports

FRONT_DOOR = "trireme gateway serve"  # on the command line of its process


class RunningGateway(NamedTuple):
    """A gateway that runs before a server of its own.

    Attributes:
        http: ``host:port`` of Triton's HTTP, behind the frontend.
        key_file: file with a key that the gateway takes.
        processes: returns the processes of gateway and server, as they are now.
    """

    url: str
    model: str
    http: str
    key_file: Path
    processes: Callable[[], list[psutil.Process]]
    cpu_s: Callable[[], float]

    @property
    def access(self) -> Access:
        """Return how a client shows its key."""
        return Access(token_file=str(self.key_file))


@contextlib.contextmanager
def running_gateway(spec: DeploymentSpec) -> Iterator[RunningGateway]:
    """Yield `trireme serve --gateway` with keys and a ledger in a new folder, once it answers.

    Raises:
        ServerError: it did not become ready.
    """
    http, grpc, metrics, port = free_ports(4)
    url = f"http://127.0.0.1:{port}/v1"
    trireme = [sys.executable, "-m", "trireme"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        deployment, kept, key_file = folder / "deployment.yaml", folder / "build" / spec.name, folder / "key"
        deployment.write_text(yaml.safe_dump(spec.model_dump(mode="json")))
        kept.mkdir(parents=True)
        command = [*trireme, "gateway", "keys", "create", "front-doors", "--keys", str(kept / "keys.sqlite")]
        key_file.write_text(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        places = zip(("--http-port", "--grpc-port", "--metrics-port"), (http, grpc, metrics), strict=True)
        ports = [str(part) for place in places for part in place]
        access = Access(token_file=str(key_file))
        with serving(
            [*trireme, "serve", "--deployment", str(deployment), *ports, "--gateway", "--gateway-port", str(port)],
            ready=lambda: is_ready(url, spec.model.name, access),
            folder=folder,
        ) as cpu_s:
            yield RunningGateway(url, spec.model.name, f"127.0.0.1:{http}", key_file, cpu_s.processes, cpu_s)


class SimulatedGateway:
    """Our gateway at its defaults: keys, and a ledger on this machine's disk."""

    precision = "no model"
    needs: tuple[Path, ...] = ()

    def __init__(self, tokenizer_dir: Path, *, step_ms: float, name: str) -> None:
        self.name = name
        self.beside: str | None = None
        self._spec = simulated_deployment(tokenizer_dir, step_ms=step_ms)

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield `trireme serve --gateway`, asked by OpenAI's API with a key."""
        with running_gateway(self._spec) as running:
            yield AskedServer(
                running.url,
                running.model,
                version=our_version(running.http),
                settings=f"trireme serve --gateway; {shown_settings(self._spec)}",
                cpu_s=running.cpu_s,
                cpu_parts_s=lambda: cpu_by_part(running.processes(), behind(FRONT_DOOR)),
                access=running.access,
            )
