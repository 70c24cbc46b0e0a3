# SPDX-License-Identifier: Apache-2.0
"""The real Envoy before real gateways and real Tritons, with what `trireme gateway envoy` writes."""

import contextlib
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from certificates import Authority
from envoy_here import needs_envoy
from envoy_of_command import EnvoyOfCommand
from gateway_process import GatewayProcess
from openai import OpenAI
from running_server import RunningServer, deployment_text
from tritonclient.grpc import service_pb2, service_pb2_grpc

from clients.streaming import GenerateRequest, TritonClient

pytestmark = needs_envoy
ENGINE = {"provider": "simulated", "step_ms": 5.0, "num_kv_blocks": 4096, "max_num_seqs": 32, "seed": 1}
EJECTED_WITHIN_S, WAIT_S = 20.0, 60.0
LONG = 1500  # tokens of an answer that takes seven seconds and more


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    with contextlib.ExitStack() as stack:
        text = deployment_text("alike", engine=ENGINE)
        yield [
            stack.enter_context(RunningServer(text, tmp_path_factory.mktemp(f"server{number}"))) for number in (1, 2)
        ]


@contextlib.contextmanager
def gateways_of(servers: list[RunningServer], folder: Path) -> Iterator[list[GatewayProcess]]:
    """Yield two gateways before both servers."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in (1, 2):
            (place := folder / f"gateway{number}").mkdir()
            found.append(stack.enter_context(GatewayProcess(servers[0], place, options=("--url", servers[1].url))))
        yield found


def named(gateways: list[GatewayProcess]) -> list[str]:
    return [word for gateway in gateways for word in ("--gateway", f"127.0.0.1:{gateway.port}")]


def test_streams_come_through_both_gateways_as_they_are_made(servers: list[RunningServer], tmp_path: Path) -> None:
    with (
        gateways_of(servers, tmp_path) as gateways,
        EnvoyOfCommand(tmp_path / "envoy", *named(gateways), "--adaptive-concurrency") as envoy,
        OpenAI(base_url=f"http://{envoy.url}/v1", api_key="none", max_retries=0) as client,
        ThreadPoolExecutor(16) as pool,
    ):

        def ask(number: int) -> int:
            """Return the number of parts that came before the caller left."""
            with client.completions.create(
                model="alike", prompt=f"{number}", max_tokens=LONG, stream=True, extra_body={"ignore_eos": True}
            ) as chunks:
                return len([chunk for chunk, _ in zip(chunks, range(3), strict=False) if chunk.choices])

        assert list(pool.map(ask, range(64))) == [3] * 64
        until(lambda: sum(metric(each, "trireme_gateway_running_requests") for each in gateways) == 0)
        # Most were left before they were made: a proxy that gathers would have shown the parts of whole answers.
        made = sum(metric(each, "gen_ai_client_token_usage_sum", label='"output"') for each in gateways)
        assert 0 < made < 64 * LONG / 2
        assert envoy.statistic("http.gateways.adaptive_concurrency.*rq_blocked") == 0
        shares = [metric(gateway, "gen_ai_server_request_duration_seconds_count") for gateway in gateways]
        assert sum(shares) == 64
        assert min(shares) >= 8


def until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def metric(gateway: GatewayProcess, name: str, *, label: str = "") -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{gateway.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name) and label in line)


def test_a_gateway_that_is_killed_is_ejected_and_what_had_not_begun_is_answered(
    servers: list[RunningServer], tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        alive, killed = stack.enter_context(gateways_of(servers, tmp_path))
        envoy = stack.enter_context(EnvoyOfCommand(tmp_path / "envoy", *named([alive, killed])))
        failed: list[tuple[float, str]] = []
        stop, lock = threading.Event(), threading.Lock()

        def work(number: int) -> int:
            count = 0
            while not stop.is_set():
                began_s = time.monotonic()
                body = {"model": "alike", "prompt": f"{number} {count}", "max_tokens": 20}
                status, said = post(envoy.port, body)
                count += 1
                if status != 200:
                    with lock:
                        failed.append((began_s, said))
            return count

        with ThreadPoolExecutor(8) as pool:
            working = [pool.submit(work, number) for number in range(8)]
            time.sleep(1)
            killed.kill()
            killed_s = time.monotonic()
            while envoy.flags("gateways")[f"127.0.0.1:{killed.port}"] == "healthy":
                assert time.monotonic() - killed_s < EJECTED_WITHIN_S
                time.sleep(0.02)
            time.sleep(1)
            stop.set()
            asked = sum(each.result() for each in working)
        assert asked > 50
        # What was sent to it and had no answer may have begun; nothing that came later is lost.
        assert len(failed) <= 8
        assert all(began_s < killed_s for began_s, _ in failed), failed
        assert {json.loads(said)["error"]["code"] for _, said in failed} <= {"unavailable"}


def post(port: int, body: dict[str, Any]) -> tuple[int, str]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", data=json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def test_calls_of_one_connection_are_spread_over_tritons(servers: list[RunningServer], tmp_path: Path) -> None:
    options = [word for server in servers for word in ("--server", server.url)]
    with EnvoyOfCommand(tmp_path, *options) as envoy:  # both say over gRPC that they serve
        assert set(envoy.flags("servers").values()) == {"healthy"}

        def ask(number: int) -> str:
            with TritonClient(envoy.server_url) as client:
                request = GenerateRequest(text_input=f"{number}", max_tokens=8, stream=True, return_finish_reason=True)
                return [*client.generate(request)][-1].finish_reason or ""

        assert {ask(number) for number in range(4)} == {"length"}
        with grpc.insecure_channel(envoy.server_url) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            before = counts(envoy, servers)
            for _ in range(40):
                assert stub.ModelReady(service_pb2.ModelReadyRequest(name="ensemble"), timeout=20).ready
            each = [now - then for now, then in zip(counts(envoy, servers), before, strict=True)]
            assert sum(each) == 40
            assert min(each) >= 8
            with pytest.raises(grpc.RpcError) as refused:
                stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=20)
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_a_triton_that_wants_a_certificate_is_shown_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    of_server, ours = authority.issue("triton", hosts=("triton.models.svc",)), authority.client()
    tls = {"cert_file": str(of_server.cert), "key_file": str(of_server.key), "client_ca_file": str(authority.ca)}
    text = deployment_text("alike", engine=ENGINE, triton={"grpc_tls": tls})
    with RunningServer(text, tmp_path / "server") as server:
        options = [
            *["--deployment", str(server.folder / "deployment.yaml"), "--server", f"grpcs://{server.url}"],
            *["--server-ca-file", str(authority.ca), "--server-name", "triton.models.svc"],
            *["--server-cert-file", str(ours.cert), "--server-key-file", str(ours.key)],
        ]
        with EnvoyOfCommand(tmp_path / "envoy", *options) as envoy, TritonClient(envoy.server_url) as client:
            request = GenerateRequest(text_input="Hi", max_tokens=8, stream=True, return_finish_reason=True)
            assert [*client.generate(request)][-1].finish_reason == "length"


def counts(envoy: EnvoyOfCommand, servers: list[RunningServer]) -> list[int]:
    """Return how many requests each server had, by Envoy's own count."""
    lines = [line.split("::") for line in envoy.ask("clusters").decode().splitlines()]
    found = {line[1]: int(line[3]) for line in lines if line[0] == "servers" and line[2:3] == ["rq_total"]}
    return [found[server.url] for server in servers]
