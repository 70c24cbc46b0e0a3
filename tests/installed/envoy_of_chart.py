# SPDX-License-Identifier: Apache-2.0
"""The real Envoy with the chart's own configuration, before servers on this machine.

A pod is an address of the loopback network, the name of a Service resolves to those of its pods, and the routes change
as a ConfigMap does.
"""

import contextlib
import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from chart_here import Values, merged, of_kind, render
from envoy_here import ENVOY
from name_server import NameServer

from trireme.base.free_ports import free_ports

_RESOLVER = "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig"
_READY_S = 20.0


class EnvoyOfChart:
    """The Envoy of values in which Envoy is enabled.

    Attributes:
        pods: addresses of the pods of each server, by its name; Envoy learns a change within a second or two.
        ports: of each server.
        values: that it is rendered with.
    """

    def __init__(self, folder: Path, values: Values) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        http, grpc, metrics, health, self.port, self.admin_port, self.operations_port = free_ports(7)
        self.ports = {"http": http, "grpc": grpc, "metrics": metrics, "health": health}
        self.values = merged(values, {"ports": self.ports, "envoy": {"enabled": True}})
        self._names: dict[str, list[str]] = {}
        self.pods: dict[str, list[str]] = {}
        for service in of_kind(self._render(), "Service"):
            server = service["metadata"]["labels"].get("trireme/server")
            if server and service["spec"].get("clusterIP") == "None":
                name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc.cluster.local"
                self.pods[server] = self._names[name] = []
        self.url = f"127.0.0.1:{self.port}"
        self.log = folder / "envoy.log"

    def _render(self) -> list[dict[str, Any]]:
        return render(self.values)

    def _files(self) -> dict[str, str]:
        maps = [
            found
            for found in of_kind(self._render(), "ConfigMap")
            if "trireme/server" not in found["metadata"]["labels"]
        ]
        return {name: text for found in maps for name, text in found.get("data", {}).items()}

    def write(self, name_server_port: int = 53) -> Path:
        """Write the configuration, of which only addresses on this machine and paths differ from the chart's."""
        self.write_routes()
        config = yaml.safe_load(self._files()["envoy.yaml"])
        ports = {8080: self.port, 9901: self.admin_port, 9902: self.operations_port}
        for place in _socket_addresses(config):
            if place["port_value"] in ports:
                place |= {"address": "127.0.0.1", "port_value": ports[place["port_value"]]}
                place.pop("ipv4_compat", None)
        config["typed_dns_resolver_config"] = {
            "name": "envoy.network.dns_resolver.cares",
            "typed_config": {
                "@type": _RESOLVER,
                "resolvers": [{"socket_address": {"address": "127.0.0.1", "port_value": name_server_port}}],
            },
        }
        path = self._folder / "envoy.yaml"
        text = yaml.safe_dump(config)
        for part in ("routes", "grpc-tls", "tls"):
            text = text.replace(f"/etc/envoy/{part}", str(self._folder / part))
        path.write_text(text)
        return path

    def write_routes(self) -> None:
        """Write the routes as the kubelet does.

        The files are links through another link, which is replaced in one step.
        """
        routes = self._folder / "routes"
        made = routes / f"..{time.monotonic_ns()}"
        made.mkdir(parents=True)
        (made / "routes.yaml").write_text(self._files()["routes.yaml"])
        if not (routes / "routes.yaml").is_symlink():
            (routes / "routes.yaml").symlink_to("..data/routes.yaml")
        (routes / "..data_tmp").symlink_to(made.name)
        (routes / "..data_tmp").rename(routes / "..data")

    def upgrade(self, values: Values) -> None:
        """Do `helm upgrade` with values that change the routes alone."""
        before = self._files()["envoy.yaml"]
        self.values = merged(self.values, values)
        assert self._files()["envoy.yaml"] == before, "a pod of Envoy would be started again"
        number = self.statistic("http.trireme.rds.trireme.update_success")
        self.write_routes()
        _until(lambda: self.statistic("http.trireme.rds.trireme.update_success") > number, "Envoy took no new routes")

    @contextlib.contextmanager
    def run(self) -> Iterator["EnvoyOfChart"]:
        """Run until the block ends; Envoy must still be alive then, unless it was told to end."""
        with contextlib.closing(NameServer(self._names)) as names, self.log.open("w") as log:
            command = [ENVOY, "-c", self.write(names.port), "--concurrency", "1", "--disable-hot-restart"]
            self.process = subprocess.Popen([*map(str, command), "--log-level", "warn"], stdout=log, stderr=log)
            try:
                _until(self.is_ready, "Envoy is not ready", or_over=self.process)
                for server, pods in self.pods.items():
                    if pods:
                        _until(lambda name=server: self.has_healthy(name), f"no pod of {server} is healthy")
                yield self
                assert self.process.poll() is None, self.log.read_text()
            finally:
                self.process.terminate()
                self.process.wait(20)

    def is_ready(self) -> bool:
        """Return whether Envoy is ready, as the kubelet asks."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.operations_port}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def has_healthy(self, server: str, number: int | None = None) -> bool:
        """Return whether `number` pods of a server, or all, get requests."""
        healthy = [host for host, flags in self.hosts(f"{server}-grpc").items() if not flags]
        return len(healthy) == (len(self.pods[server]) if number is None else number)

    def hosts(self, cluster: str) -> dict[str, list[str]]:
        """Return the addresses of a cluster's pods, and for each what is wrong with it."""
        [found] = [each for each in self._admin("clusters?format=json")["cluster_statuses"] if each["name"] == cluster]
        return {
            host["address"]["socket_address"]["address"]: [
                flag
                for flag, is_set in host.get("health_status", {}).items()
                if is_set is True and flag.startswith("failed_")
            ]
            for host in found.get("host_statuses", [])
        }

    def statistic(self, name: str) -> int:
        """Return one of Envoy's counters, or the sum of those that a pattern names."""
        return sum(int(each["value"]) for each in self._admin(f"stats?format=json&filter=^{name}$")["stats"])

    def _admin(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/{path}", timeout=10) as answer:
            return json.load(answer)


def _socket_addresses(config: object) -> Iterator[dict[str, Any]]:
    match config:
        case {"port_value": _, "address": _}:
            yield config  # type: ignore[misc]
        case dict():
            for each in config.values():
                yield from _socket_addresses(each)
        case list():
            for each in config:
                yield from _socket_addresses(each)


def _until(is_so: Any, message: str, *, or_over: "subprocess.Popen[bytes] | None" = None) -> None:
    deadline_s = time.monotonic() + _READY_S
    while not is_so():
        assert or_over is None or or_over.poll() is None, "Envoy has ended"
        assert time.monotonic() < deadline_s, message
        time.sleep(0.05)
