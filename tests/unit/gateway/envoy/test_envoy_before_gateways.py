# SPDX-License-Identifier: Apache-2.0
"""The real Envoy before several gateways, with what `trireme gateway envoy` writes.

The gateways are real, the servers behind them are scripted.
"""

import asyncio
import contextlib
import http.client
import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiohttp.web
import pytest
from certificates import HERE, Authority
from envoy_here import needs_envoy
from envoy_of_command import EnvoyOfCommand
from gateway_before_scripts import wait_until
from kserve_server import HANG, KServeServer, Step, response, story
from running_gateway import RunningGateway
from websockets.sync.client import connect

from trireme.base.free_ports import free_ports

pytestmark = [pytest.mark.slow, needs_envoy]
RESTARTING = "[UNAVAILABLE reason=engine_restarting] the engine starts"
TEXT = "Once upon ünd"


class Site:
    """An Envoy before gateways, each with a server of its own."""

    def __init__(self, envoy: EnvoyOfCommand, gateways: list[RunningGateway], servers: list[KServeServer]) -> None:
        self.envoy, self.gateways, self.servers = envoy, gateways, servers

    def counts(self) -> list[int]:
        return [len(server.requests) for server in self.servers]

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.envoy.port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()

    def complete(self, **fields: Any) -> tuple[int, Any]:
        status, _, data = self.call("POST", "/v1/completions", {"prompt": "Hi", **fields})
        return status, json.loads(data)


@contextlib.contextmanager
def site_of(
    folder: Path, *scripts: list[Step], weights: tuple[int, ...] = (), options: tuple[str, ...] = (), **more: Any
) -> Iterator[Site]:
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(KServeServer(*script)) for script in scripts]
        gateways = [stack.enter_context(RunningGateway(server.url)) for server in servers]
        urls = [f"127.0.0.1:{gateway.port}" for gateway in gateways]
        if weights:
            urls = [f"{url}={weight}" for url, weight in zip(urls, weights, strict=True)]
        named = [word for url in urls for word in ("--gateway", url)]
        yield Site(stack.enter_context(EnvoyOfCommand(folder, *named, *options, **more)), gateways, servers)


def within_bounds(count: int, total: int, share: float) -> bool:
    """Return whether a count is one that chance makes of a share: within 4.5 standard deviations."""
    return abs(count - total * share) <= 4.5 * math.sqrt(total * share * (1 - share)) + 1


def test_events_come_one_by_one_and_not_gathered(tmp_path: Path) -> None:
    gates = [threading.Event() for _ in range(2)]
    first, second, third = story()
    with site_of(tmp_path, [first, gates[0], second, gates[1], third]) as site:
        connection = http.client.HTTPConnection("127.0.0.1", site.envoy.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": True}))
            stream = connection.getresponse()
            texts = []
            for gate in gates:  # what follows is not even made before this event is here
                texts.append(json.loads(stream.readline().removeprefix(b"data: "))["choices"][0]["text"])
                stream.readline()
                gate.set()
            assert texts == ["Once", " upon"]
            assert stream.read().endswith(b"data: [DONE]\n\n")


BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]},
    "/v1/responses": {"input": "Hi"},
}


def test_a_stream_that_is_silent_for_longer_than_envoys_own_time_out_is_not_cut(tmp_path: Path) -> None:
    first, *rest = story()
    # Envoy by itself gives an answer 15 s, and what is no generation has 30 here.
    with site_of(tmp_path, [32.0, first, *rest]) as site, ThreadPoolExecutor(len(BODIES)) as pool:

        def ask(path: str) -> tuple[int, bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", site.envoy.port, timeout=120)
            with contextlib.closing(connection):
                connection.request("POST", path, json.dumps({**BODIES[path], "stream": True}))
                answer = connection.getresponse()
                return answer.status, answer.read()

        for status, data in pool.map(ask, BODIES):
            assert status == 200
            assert b"nd" in data  # the last of its text
            assert b'"error":{' not in data


def test_a_stream_on_which_nothing_moves_is_ended_and_its_generation_too(tmp_path: Path) -> None:
    first = response("Once", num_output_tokens=1, num_input_tokens=4)
    with site_of(tmp_path, [first, HANG], options=("--idle-timeout-s", "2")) as site:
        with pytest.raises(http.client.IncompleteRead) as cut:
            site.call("POST", "/v1/completions", {"prompt": "Hi", "stream": True})
        assert b"Once" in cut.value.partial
        assert site.servers[0].was_cancelled.wait(20)


def test_weights_are_met(tmp_path: Path) -> None:
    with site_of(tmp_path, story(), story(), weights=(3, 1)) as site, ThreadPoolExecutor(8) as pool:
        total = 400
        assert {status for status, _ in pool.map(lambda _: site.complete(), range(total))} == {200}
        assert sum(site.counts()) == total
        assert within_bounds(site.counts()[0], total, 0.75)


def test_a_mirror_gets_copies_and_nobody_sees_its_answers(tmp_path: Path) -> None:
    total = 400
    with (
        KServeServer(response("other", num_output_tokens=1, finish_reason="stop", final=True)) as behind,
        RunningGateway(behind.url) as mirror,
        site_of(tmp_path, story(), options=("--mirror", f"127.0.0.1:{mirror.port}", "--mirror-percent", "25")) as site,
        ThreadPoolExecutor(8) as pool,
    ):
        answers = list(pool.map(lambda _: site.complete(), range(total)))
        assert {status for status, _ in answers} == {200}
        assert {answer["choices"][0]["text"] for _, answer in answers} == {TEXT}
        assert site.counts() == [total]
        wait_until(lambda: site.envoy.statistic("cluster.gateway_mirrors.upstream_rq_active") == 0)
        assert within_bounds(len(behind.requests), total, 0.25)


def test_a_mirror_that_hangs_costs_nobody_anything(tmp_path: Path) -> None:
    with (
        KServeServer(HANG) as behind,
        RunningGateway(behind.url) as mirror,
        site_of(tmp_path, story(), options=("--mirror", f"127.0.0.1:{mirror.port}", "--mirror-percent", "100")) as site,
    ):
        assert [site.complete()[0] for _ in range(100)] == [200] * 100
        assert len(behind.requests) <= 64


def test_a_generation_that_fails_is_not_made_again(tmp_path: Path) -> None:
    """It may have begun: the first gateway's 503 says nothing else."""
    script = [response("Once", num_output_tokens=1, num_input_tokens=4), RESTARTING]
    with site_of(tmp_path, script, script) as site:
        for _ in range(4):
            assert site.complete()[0] == 503
        assert sum(site.counts()) == 4


def test_no_caller_can_have_a_generation_repeated_or_cut(tmp_path: Path) -> None:
    headers = {
        "x-envoy-retry-on": "5xx,reset,retriable-4xx",
        "x-envoy-max-retries": "5",
        "x-envoy-upstream-rq-timeout-ms": "1",
    }
    with site_of(tmp_path, [0.3, RESTARTING], [0.3, RESTARTING]) as site:
        status, _, data = site.call("POST", "/v1/completions", {"prompt": "Hi"}, **headers)
        assert (status, json.loads(data)["error"]["message"]) == (503, "the engine starts")
        assert sum(site.counts()) == 1


def test_what_reached_no_model_is_asked_of_another_gateway(tmp_path: Path) -> None:
    with KServeServer(*story()) as one, KServeServer(*story()) as other:
        one.is_ready = other.is_ready = False
        with RunningGateway(one.url, other.url) as bad, site_of(tmp_path, story(), options=()) as site:
            # A gateway whose servers have gone a moment ago: its health is not known to be bad yet.
            options = ("--gateway", f"127.0.0.1:{bad.port}", "--gateway", f"127.0.0.1:{site.gateways[0].port}")
            changes = {"path: /health/ready?models=any": "path: /health/live"}
            with EnvoyOfCommand(tmp_path / "two", *options, changes=changes) as envoy:
                both = Site(envoy, [], site.servers)
                assert bad.complete().status == 503
                assert [both.complete()[0] for _ in range(8)] == [200] * 8
                assert envoy.statistic("cluster.gateways.upstream_rq_retry_success") >= 1
        assert (one.requests, other.requests) == ([], [])


def test_a_request_that_was_sent_and_not_answered_is_not_sent_again(tmp_path: Path) -> None:
    """A gateway that dies then may have made half of the answer."""
    asked: list[bytes] = []
    with site_of(tmp_path, story()) as site, broken_gateway(asked) as port:
        options = ("--gateway", f"127.0.0.1:{port}", "--gateway", f"127.0.0.1:{site.gateways[0].port}")
        with EnvoyOfCommand(tmp_path / "two", *options) as envoy:
            both = Site(envoy, [], site.servers)
            answers = [both.call("POST", "/v1/completions", {"prompt": f"{number}"}) for number in range(12)]
        failed = [data for status, _, data in answers if status == 503]
        assert len(failed) == len(asked) >= 1  # until it is ejected
        assert len(failed) + sum(site.counts()) == 12  # each was asked once
        error = json.loads(failed[0])["error"]
        assert (error["code"], error["type"]) == ("unavailable", "server_error")


@contextlib.contextmanager
def broken_gateway(asked: list[bytes]) -> Iterator[int]:
    """Yield the port of what says that it is ready, and ends each connection that brings a request."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65536):
                if b"/health/ready" not in data:
                    asked.append(data)
                    return
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    yield listener.getsockname()[1]
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()


def test_a_gateway_that_is_not_there_loses_no_request(tmp_path: Path) -> None:
    [nobody] = free_ports(1)
    with site_of(tmp_path, story()) as site:
        options = ("--gateway", f"127.0.0.1:{nobody}", "--gateway", f"127.0.0.1:{site.gateways[0].port}")
        with EnvoyOfCommand(tmp_path / "two", *options, is_all_well=False) as envoy:
            both = Site(envoy, [], site.servers)
            assert [both.complete()[0] for _ in range(20)] == [200] * 20
            wait_until(lambda: "failed_active_hc" in envoy.flags("gateways")[f"127.0.0.1:{nobody}"])


def test_callers_headers_of_ours_are_not_believed_and_others_go_on(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []
    with echoing(seen) as port, EnvoyOfCommand(tmp_path, "--gateway", f"127.0.0.1:{port}") as envoy:
        site = Site(envoy, [], [])
        ours = {"x-trireme-not-begun": "true", "X-Trireme-Tenant": "acme", "x-envoy-retry-on": "5xx"}
        brought = {"Authorization": "Bearer of-mine", "X-Request-Id": "mine-1", "traceparent": "00-1-2-01"}
        status, headers, _ = site.call("POST", "/v1/completions?api_key=hidden", {"prompt": "Hi"}, **ours, **brought)
        assert status == 200
        assert headers["x-request-id"] == "of-the-answer"
        assert "x-envoy-upstream-service-time" not in headers
        [sent] = seen
        assert not any(name.startswith(("x-trireme", "x-envoy-retry")) for name in sent)
        assert {name: sent[name.lower()] for name in brought} == brought
        wait_until(lambda: envoy.entries() != [])
        [entry] = envoy.entries()
        assert (entry["path"], entry["status"]) == ("/v1/completions", 200)
        assert (entry["request_id"], entry["answer_id"]) == ("mine-1", "of-the-answer")
        assert "hidden" not in json.dumps(entry)
        assert "of-mine" not in json.dumps(entry)


@contextlib.contextmanager
def echoing(seen: list[dict[str, str]]) -> Iterator[int]:
    """Yield the port of a server that notes the headers of requests, but for those about its health."""
    [port] = free_ports(1)
    loop = asyncio.new_event_loop()

    async def answer(request: aiohttp.web.BaseRequest) -> aiohttp.web.Response:
        if request.path != "/health/ready":
            seen.append({name.lower(): text for name, text in request.headers.items()})
        return aiohttp.web.Response(text="{}", headers={"x-request-id": "of-the-answer"})

    async def serve() -> aiohttp.web.ServerRunner:
        runner = aiohttp.web.ServerRunner(aiohttp.web.Server(answer))
        await runner.setup()
        await aiohttp.web.TCPSite(runner, "127.0.0.1", port).start()
        return runner

    runner = loop.run_until_complete(serve())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield port
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/health/ready", 200),
        ("/v1/models", 200),
        ("/openapi.json", 200),
        ("/metrics", 404),
        ("/admin/status", 404),
        ("/", 404),
        ("/v1/../metrics", 404),
        ("/v1/%2e%2e/metrics", 404),
        ("/v1%2f..%2fmetrics", 400),
    ],
)
def test_only_what_is_for_callers_is_let_through(paths: Site, path: str, status: int) -> None:
    found, headers, data = paths.call("GET", path)
    assert found == status
    if status != 200:
        assert headers["content-type"] == "application/json"
        assert set(json.loads(data)["error"]) == {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_of(tmp_path_factory.mktemp("paths"), story()) as site:
        yield site


def test_a_head_that_is_too_long_is_refused(paths: Site) -> None:
    assert paths.call("GET", "/v1/models", None, **{"x-long": "x" * 40_000})[0] == 431
    assert paths.call("GET", "/v1/models", None, **{f"x-{number}": "x" for number in range(120)})[0] == 431


def test_responses_come_by_a_websocket(tmp_path: Path) -> None:
    with site_of(tmp_path, story()) as site:
        with connect(f"ws://{site.envoy.url}/v1/responses") as connection:
            for _ in range(2):
                connection.send(json.dumps({"type": "response.create", "model": "demo", "input": "Hi"}))
                events: list[dict[str, Any]] = []
                while not events or not events[-1]["type"].endswith(("completed", "incomplete", "error")):
                    events.append(json.loads(connection.recv(timeout=20)))
                deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
                assert "".join(deltas) == TEXT
        assert site.counts() == [2]
        assert site.call("POST", "/v1/responses", {"model": "demo", "input": "Hi"})[0] == 200


def test_adaptive_concurrency_refuses_no_stream_that_the_engines_have_room_for(tmp_path: Path) -> None:
    """Answers differ in length by a hundred times, and Envoy measures again and again."""
    num_callers = 24
    script = [pieces]
    often = {"interval: 60s": "interval: 2s", "request_count: 50": "request_count: 5"}
    options = ("--adaptive-concurrency", "--least-requests", str(num_callers))
    with site_of(tmp_path, script, options=options, changes=often) as site:
        assert ask_long(site, num_callers) == {200}
        assert site.envoy.statistic("http.gateways.adaptive_concurrency.*rq_blocked") == 0
        assert site.envoy.statistic("http.gateways.adaptive_concurrency.*concurrency_limit") >= num_callers
    # By itself it takes them for overload: 3 at a time while it measures.
    alone = often | {f"min_concurrency: {num_callers}": "min_concurrency: 3"}
    with site_of(tmp_path / "alone", script, options=options, changes=alone) as site:
        assert ask_long(site, num_callers) == {200, 429}
        assert site.envoy.statistic("http.gateways.adaptive_concurrency.*rq_blocked") > 0


def pieces(request: Any) -> Iterator[Step]:
    """Yield the steps of an answer as long as its prompt asks for."""
    sent = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
    number = int(sent["text_input"][4:])
    for _ in range(number):
        yield response("x", num_output_tokens=1, num_input_tokens=1)
        yield 0.01
    yield response("", num_output_tokens=1, finish_reason="stop", final=True)


def ask_long(site: Site, num_callers: int) -> set[int]:
    """Return the statuses of streams, so many at a time, for a few seconds."""
    lengths = [1, 2, 5, 20, 100]

    def ask(number: int) -> int:
        status, _, data = site.call(
            "POST", "/v1/completions", {"prompt": str(lengths[number % len(lengths)]), "stream": True}
        )
        if status != 200:
            error = json.loads(data)["error"]
            assert (error["code"], error["type"]) == ("overloaded", "rate_limit_error")
        return status

    end_s = time.monotonic() + 6
    found: set[int] = set()
    with ThreadPoolExecutor(num_callers) as pool:

        def work(first: int) -> None:
            number = first
            while time.monotonic() < end_s:
                found.add(ask(number))
                number += num_callers + 1

        list(pool.map(work, range(num_callers)))
    return found


def test_beyond_the_most_requests_callers_are_told_to_try_again(tmp_path: Path) -> None:
    gate = threading.Event()
    with site_of(tmp_path, [gate, *story()], options=("--max-requests", "2")) as site, ThreadPoolExecutor(6) as pool:
        running = [pool.submit(site.complete) for _ in range(6)]
        wait_until(lambda: sum(each.done() for each in running) == 2)
        wait_until(lambda: site.counts() == [2])  # two more wait for one of these to end
        gate.set()
        answers = [each.result() for each in running]
        assert sorted(status for status, _ in answers) == [200] * 4 + [429] * 2
        assert {answer["error"]["code"] for status, answer in answers if status == 429} == {"overloaded"}


@pytest.mark.parametrize("case", ["right", "another name", "another authority"])
def test_tls_on_both_sides(tmp_path: Path, case: str) -> None:
    authority, stranger = Authority(tmp_path / "ours"), Authority(tmp_path / "strangers")
    shown = authority.issue("front", hosts=("models.example",))
    of_gateway = (stranger if case == "another authority" else authority).issue(
        "gateway", hosts=("other.example",) if case == "another name" else ("gateway.example", *HERE)
    )
    with (
        KServeServer(*story()) as server,
        RunningGateway(server.url, certificate=(of_gateway.cert, of_gateway.key)) as gateway,
    ):
        options = [
            *["--gateway", f"https://127.0.0.1:{gateway.port}", "--gateway-name", "gateway.example"],
            *["--gateway-ca-file", str(authority.ca), "--cert-file", str(shown.cert), "--key-file", str(shown.key)],
        ]
        with EnvoyOfCommand(tmp_path / "envoy", *options, is_all_well=case == "right") as envoy:
            context = ssl.create_default_context(cafile=str(authority.ca))
            assert ask_by_tls(envoy.port, context) == (200 if case == "right" else 503)
            assert len(server.requests) == (case == "right")
            old = ssl.create_default_context(cafile=str(authority.ca))
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_2
            assert ask_by_tls(envoy.port, old) == (200 if case == "right" else 503)
            with pytest.warns(DeprecationWarning, match="TLSv1_1"):
                old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises(ssl.SSLError):
                ask_by_tls(envoy.port, old)


def test_callers_without_a_certificate_are_refused_where_one_is_asked_for(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    shown, client = authority.issue("front", hosts=("models.example",)), authority.issue("client")
    options = (
        *["--cert-file", str(shown.cert), "--key-file", str(shown.key)],
        *["--client-ca-file", str(authority.ca)],
    )
    with site_of(tmp_path / "site", story(), options=options) as site:
        context = ssl.create_default_context(cafile=str(authority.ca))
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask_by_tls(site.envoy.port, context)
        context.load_cert_chain(client.cert, client.key)
        assert ask_by_tls(site.envoy.port, context) == 200


def ask_by_tls(port: int, context: ssl.SSLContext) -> int:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
        context.wrap_socket(plain, server_hostname="models.example") as line,
    ):
        body = json.dumps({"prompt": "Hi"}).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: models.example\r\ncontent-length: {len(body)}\r\n\r\n"
        line.sendall(head.encode() + body)
        return int(line.recv(64).split()[1])
