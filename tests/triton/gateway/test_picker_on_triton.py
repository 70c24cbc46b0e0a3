# SPDX-License-Identifier: Apache-2.0
"""The endpoint picker before two real Tritons, asked by the real Envoy in the ways of the inference extension."""

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from envoy_here import needs_envoy
from envoy_of_picker import EnvoyOfPicker
from running_server import RunningServer, deployment_text

from clients.infer_messages import GenerateRequest
from clients.streaming import TritonClient
from gateway.picker.envoy_messages import HEALTH, SERVING, HealthCheckRequest, HealthCheckResponse
from trireme.base.free_ports import free_ports

pytestmark = needs_envoy
ENGINE = {
    "provider": "simulated",
    "step_ms": 20.0,
    "num_kv_blocks": 4096,
    "max_num_seqs": 16,
    "seed": 1,
    "is_block_reuse": True,
}
HOSTS = ("127.0.8.2", "127.0.8.3")  # pods have one port at addresses of their own
WAIT_S = 60.0


class AtHost(RunningServer):
    """A server at an address and a port that are not its own to choose."""

    def __init__(self, deployment: str, folder: Path, host: str, http_port: int) -> None:
        super().__init__(deployment, folder, options=("--host", host))
        self.host, self.http_port = host, http_port
        self.url = f"{host}:{self.grpc_port}"

    def is_ready(self) -> bool:
        return answers(f"http://{self.host}:{self.http_port}/v2/health/ready")


class Site(NamedTuple):
    """Two servers, and the port of a picker before them."""

    servers: list[AtHost]
    picker_port: int

    @property
    def endpoints(self) -> list[str]:
        return [f"{server.host}:{server.http_port}" for server in self.servers]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_serving(port: int, service: str) -> bool:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        check = channel.unary_unary(
            f"/{HEALTH}/Check", HealthCheckRequest.SerializeToString, HealthCheckResponse.FromString
        )
        try:
            return bool(check(HealthCheckRequest(service=service), timeout=5).status == SERVING)
        except grpc.RpcError:
            return False


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    text = deployment_text("alike", engine=ENGINE, kv_events={})
    http_port, picker_port = free_ports(2)
    folder = tmp_path_factory.mktemp("picker")
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(AtHost(text, tmp_path_factory.mktemp(host), host, http_port)) for host in HOSTS]
        command = [sys.executable, "-m", "trireme", "gateway", "picker", "--listen", f"127.0.0.1:{picker_port}"]
        command += ["--deployment", str(servers[0].folder / "deployment.yaml"), "--endpoint-port", str(http_port)]
        for server in servers:
            command += ["--url", server.url, "--metrics-url", f"{server.host}:{server.metrics_port}"]
        log = stack.enter_context((folder / "picker.log").open("wb"))
        process = subprocess.Popen([*command, "--exit-timeout-s", "0"], stderr=log)

        def end() -> None:
            process.terminate()
            assert process.wait(30) == 0, (folder / "picker.log").read_text()

        stack.callback(end)
        wait_until(lambda: process.poll() is not None or is_serving(picker_port, "readiness"))
        assert process.poll() is None, (folder / "picker.log").read_text()
        yield Site(servers, picker_port)


@pytest.fixture(
    params=[("FULL_DUPLEX_STREAMED", True), ("FULL_DUPLEX_STREAMED", False), ("BUFFERED", True), ("BUFFERED", False)],
    ids=["streamed, by metadata", "streamed, by header", "buffered, by metadata", "buffered, by header"],
)
def envoy(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> Iterator[EnvoyOfPicker]:
    body_mode, is_by_metadata = request.param
    endpoints = site.endpoints if is_by_metadata else []
    with EnvoyOfPicker(tmp_path, site.picker_port, body_mode=body_mode, endpoints=endpoints) as running:
        yield running


def ask(envoy: EnvoyOfPicker, text: str, *, path: str = "generate", max_tokens: int = 2) -> tuple[int, bytes]:
    body = json.dumps({"text_input": text, "max_tokens": max_tokens, "stream": path != "generate"}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{envoy.port}/v2/models/ensemble/{path}", body)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def test_a_prompt_goes_where_its_beginning_is_and_new_ones_take_turns(envoy: EnvoyOfPicker, site: Site) -> None:
    for text in ("amber " * 100, "river " * 100):
        for more in range(3):
            assert ask(envoy, f"{text} {id(envoy)} {more * 'and so on ' * 30}")[0] == 200
    hosts = envoy.hosts(6)
    assert len(hosts) == 6
    assert len(set(hosts[:3])) == len(set(hosts[3:])) == 1
    assert set(hosts) <= set(site.endpoints)


def test_a_prompt_goes_where_somebody_else_has_sent_its_beginning(envoy: EnvoyOfPicker, site: Site) -> None:
    """The servers tell what their caches hold, and the picker has picked for none of it."""
    twice = [server for server in site.servers for _ in range(2)]  # not in turns
    for turn, server in enumerate(twice):
        beginning = f"{turn} {id(envoy)} " + "a harbour at dawn " * 60
        with TritonClient(server.url) as client:
            list(client.generate(GenerateRequest(text_input=f"{beginning} one", max_tokens=2, stream=True)))
        time.sleep(1.0)  # until the server has told
        assert ask(envoy, f"{beginning} two")[0] == 200
    assert envoy.hosts(4) == [endpoint for endpoint in site.endpoints for _ in range(2)]


def test_a_stream_comes_through_event_by_event(envoy: EnvoyOfPicker) -> None:
    status, data = ask(envoy, "Once", path="generate_stream", max_tokens=10)
    assert status == 200
    assert data.count(b"data:") >= 5


@contextlib.contextmanager
def loaded(server: AtHost) -> Iterator[None]:
    """Let a client that is not Envoy's have some streams at a server."""
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(TritonClient(server.url))
        for number in range(8):
            request = GenerateRequest(text_input=f"{number}", max_tokens=1500, stream=True)
            chunks: Any = stack.enter_context(contextlib.closing(client.generate(request, timeout_s=120)))
            next(chunks)
        yield


def test_requests_go_where_nobody_else_has_his_own(envoy: EnvoyOfPicker, site: Site) -> None:
    with loaded(site.servers[0]):
        time.sleep(1.5)  # until the picker has looked again
        for number in range(4):
            assert ask(envoy, f"{number}")[0] == 200
    assert envoy.hosts(4) == [site.endpoints[1]] * 4


def test_requests_without_a_body_and_with_one_that_cannot_be_read_are_the_servers_to_answer(
    envoy: EnvoyOfPicker, site: Site
) -> None:
    assert answers(f"http://127.0.0.1:{envoy.port}/v2/models/ensemble/ready")
    request = urllib.request.Request(f"http://127.0.0.1:{envoy.port}/v2/models/ensemble/generate", b'{"text_input": ')
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=30)
    with refused.value:
        assert refused.value.code == 400
    assert set(envoy.hosts(2)) <= set(site.endpoints)


def test_probes_are_told_whether_a_server_takes_requests(site: Site) -> None:
    for service in ("", "liveness", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"):
        assert is_serving(site.picker_port, service)
    assert not is_serving(site.picker_port, "nonsense")


def test_where_all_servers_are_gone_callers_get_503_and_probes_are_told(tmp_path: Path) -> None:
    ports = free_ports(2)
    text = deployment_text("alike", engine=ENGINE)
    (tmp_path / "deployment.yaml").write_text(text)
    command = [sys.executable, "-m", "trireme", "gateway", "picker", "--listen", f"127.0.0.1:{ports[0]}"]
    command += ["--deployment", str(tmp_path / "deployment.yaml"), "--url", f"127.0.0.1:{ports[1]}"]
    with (tmp_path / "picker.log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    try:
        wait_until(lambda: process.poll() is not None or is_serving(ports[0], "liveness"))
        time.sleep(3)  # two looks at the server
        assert not is_serving(ports[0], "readiness")
        mode = "FULL_DUPLEX_STREAMED"
        with EnvoyOfPicker(tmp_path / "envoy", ports[0], body_mode=mode, endpoints=[]) as envoy:
            status, said = ask(envoy, "Once")
        assert (status, json.loads(said)["error"]["code"]) == (503, "unavailable")
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "picker.log").read_text()
