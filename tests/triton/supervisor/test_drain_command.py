# SPDX-License-Identifier: Apache-2.0
"""`trireme drain` and `--exit-delay-s` on the real server: what a pod's preStop hook does to requests."""

import asyncio
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
from process_words import words_of
from raw_calls import StreamFailed, stream
from running_server import RunningServer, deployment_text

from clients.server_control import ServerControl
from clients.streaming import AsyncTritonClient, GenerateRequest
from trireme.base.free_ports import free_ports

StartServer = Callable[..., RunningServer]

SLOW = {"provider": "simulated", "step_ms": 20.0, "max_num_seqs": 32}
WAIT_S = 60.0


def drain(server: RunningServer, *options: str) -> "subprocess.Popen[str]":
    """Start the command where the server was started."""
    command = [sys.executable, "-m", "trireme", "drain", *options]
    return subprocess.Popen(command, cwd=server.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(condition: Callable[[], object], server: RunningServer) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, server.log()
        time.sleep(0.02)


def health(port: int, question: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{question}", timeout=5) as response:
            return response.status, json.load(response)["why"]
    except urllib.error.HTTPError as exc:
        with exc:
            return exc.code, json.load(exc)["why"]


def answer(server: RunningServer, max_tokens: int = 2) -> int:
    """Return the number of responses to one new request."""
    return len(list(stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": max_tokens, "stream": True})))


def taken_until_refused(server: RunningServer) -> tuple[int, str]:
    """Return how many requests are answered, one after the other, and the error of the first that is not."""
    num_taken = 0
    while True:
        try:
            answer(server)
        except StreamFailed as exc:
            return num_taken, str(exc)
        num_taken += 1


async def drained_under_streams(server: RunningServer, count: int, max_tokens: int) -> tuple[list[int], int]:
    """Run `trireme drain` once each of `count` streams has its first token.

    Return the tokens of each, and the command's status.
    """
    request = GenerateRequest(
        text_input="hello", max_tokens=max_tokens, stream=True, exclude_input_in_output=True,
        return_num_output_tokens=True,
    )  # fmt: skip
    have_first = asyncio.Barrier(count + 1)

    async def read(client: AsyncTritonClient) -> int:
        num_tokens = 0
        async for chunk in client.generate(request):
            if not num_tokens:
                await have_first.wait()
            num_tokens += chunk.num_output_tokens or 0
        return num_tokens

    async with AsyncTritonClient(server.url) as client:
        readers = [asyncio.create_task(read(client)) for _ in range(count)]
        await have_first.wait()
        command = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "trireme", "drain", "--json", cwd=server.folder, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await command.communicate()
        assert json.loads(said) == {"outcome": "finished"}
        assert server.num_streams() == 0
        assert command.returncode is not None
        return await asyncio.gather(*readers), command.returncode


def test_16_streams_come_to_their_end_while_it_drains_and_sigterm_then_ends_it_at_once(
    start_server: StartServer,
) -> None:
    [port] = free_ports(1)
    server = start_server(engine=SLOW, options=("--health-port", str(port), "--exit-timeout-s", "600"))
    assert asyncio.run(drained_under_streams(server, 16, 150)) == ([150] * 16, 0)

    assert health(port, "ready") == (503, "drained")
    assert health(port, "live") == (200, "drained")
    assert not server.is_ready()
    with pytest.raises(StreamFailed, match=r"\[UNAVAILABLE reason=draining\]"):
        answer(server)
    assert server.process.poll() is None
    again = drain(server)
    assert again.communicate(timeout=WAIT_S)[0] == "drained: every stream came to its end\n"
    assert again.returncode == 0

    server.interrupt()
    assert server.process.wait(20) == 0
    assert "stopped" in server.log()
    assert server.shared_memory() == []


def test_requests_are_taken_during_the_delay_and_refused_after_it(start_server: StartServer) -> None:
    [port] = free_ports(1)
    options = ("--health-port", str(port), "--exit-delay-s", "3", "--exit-timeout-s", "600")
    server = start_server(engine=SLOW, options=options)
    asked_s = time.monotonic()
    first, second = drain(server), drain(server)
    wait_until(lambda: "new requests are taken for another 3 s" in server.log(), server)
    assert health(port, "ready") == (503, "draining")
    assert not server.is_ready()
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 400, "stream": True})
    num_responses = 1 + bool(next(running))  # of a request that came when it was not ready any more
    num_taken, refusal = taken_until_refused(server)
    assert "[UNAVAILABLE reason=draining]" in refusal
    assert time.monotonic() - asked_s > 3
    assert num_taken >= 1
    assert first.poll() is None  # a stream runs
    assert second.poll() is None
    assert num_responses + len(list(running)) > 100
    for command in (first, second):
        said, told = command.communicate(timeout=WAIT_S)
        assert command.returncode == 0, told
        assert said == "drained: every stream came to its end\n"
        assert "new requests are taken for another 3 s" in told
        assert "running streams may take another 600 s" in told
    assert server.stop() == 0


def test_sigterm_has_the_delay_too_and_the_second_one_ends_it(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, options=("--exit-delay-s", "3600"))
    server.interrupt()
    wait_until(lambda: "new requests are taken for another 3600 s" in server.log(), server)
    wait_until(lambda: not server.is_ready(), server)
    assert answer(server) > 0
    server.interrupt()
    assert server.process.wait(30) == 0


def test_sigterm_while_it_drains_lets_streams_end_and_then_ends_it(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, options=("--exit-timeout-s", "600"))
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 200, "stream": True})
    next(running)
    command = drain(server)
    wait_until(lambda: "running streams may take another 600 s" in server.log(), server)
    server.interrupt()
    assert len(list(running)) > 50
    assert command.wait(WAIT_S) == 0
    assert server.process.wait(30) == 0
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.close()
    command.stderr.close()


def test_streams_longer_than_the_exit_timeout_are_ended_and_that_is_said(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, options=("--exit-timeout-s", "1"))
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 2000, "stream": True})
    next(running)
    command = drain(server, "--json")
    with pytest.raises(StreamFailed, match="reason=shutdown"):
        list(running)
    assert json.loads(command.communicate(timeout=WAIT_S)[0]) == {"outcome": "cut"}
    assert command.returncode == 0
    assert server.process.poll() is None


def test_a_drained_server_whose_triton_is_killed_stays_and_starts_none(start_server: StartServer) -> None:
    [port] = free_ports(1)
    server = start_server(engine=SLOW, options=("--health-port", str(port)))
    assert drain(server).communicate(timeout=WAIT_S)[0] == "drained: every stream came to its end\n"
    server.tritonserver().kill()
    wait_until(lambda: not server.triton_processes() and server.shared_memory() == [], server)
    assert "ended with status -9; it was drained, and is left so" in server.log()
    assert health(port, "live") == (200, "drained")
    assert "starting it again" not in server.log()
    server.interrupt()
    assert server.process.wait(20) == 0


def test_triton_that_dies_in_the_delay_is_an_error_and_is_not_started_again(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, options=("--exit-delay-s", "3600"))
    command = drain(server)
    wait_until(lambda: "new requests are taken for another 3600 s" in server.log(), server)
    server.tritonserver().kill()
    assert "failed while it was drained" in command.communicate(timeout=WAIT_S)[1]
    assert command.returncode == 1
    assert server.process.poll() is None
    server.interrupt()
    assert server.process.wait(30) == 0
    assert "starting it again" not in server.log()


@pytest.mark.soak
def test_a_candidate_that_dies_meanwhile_costs_the_stable_release_no_stream(start_server: StartServer) -> None:
    server = start_server(engine=SLOW, options=("--exit-delay-s", "3", "--exit-timeout-s", "600"))
    control = ServerControl(server.folder / "build/spoiled/control.sock")
    [model] = cast("list[dict[str, Any]]", control.ask("status")["models"])
    control.ask("add", release=model["releases"][0] | {"release": 2})
    running = stream(server.url, "ensemble", {"text_input": "hello", "max_tokens": 500, "stream": True})
    next(running)
    command = drain(server)
    wait_until(lambda: "new requests are taken for another 3 s" in server.log(), server)
    [dying] = [p for p in server.descendants() if any("/ensemble_canary/2/model.py" in part for part in words_of(p))]
    dying.kill()
    assert len(list(running)) > 100
    assert command.communicate(timeout=WAIT_S)[0] == "drained: every stream came to its end\n"
    assert "running streams may take another 600 s" in server.log()


def tritonservers(pid: int) -> list[psutil.Process]:
    """Return those below a process; its frontends are there for as long as it is itself."""
    return [each for each in psutil.Process(pid).children(recursive=True) if each.name().startswith("tritonserver")]


def test_a_server_that_loads_is_drained_at_once_and_does_not_become_ready(tmp_path: Path) -> None:
    hanging = {"provider": "simulated", "fault": {"kind": "hang"}}
    (tmp_path / "deployment.yaml").write_text(deployment_text("loading", engine=hanging))
    health_port, *ports = free_ports(4)
    options = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    command = [sys.executable, "-m", "trireme", "serve", "--deployment", "deployment.yaml", *options]
    with (tmp_path / "serve.log").open("wb") as log:
        server = subprocess.Popen([*command, f"--health-port={health_port}"], cwd=tmp_path, stdout=log, stderr=log)
    try:
        deadline_s = time.monotonic() + WAIT_S
        while not tritonservers(server.pid):  # it loads for ever
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        asked = [sys.executable, "-m", "trireme", "drain"]
        done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert (done.returncode, done.stdout) == (0, "drained: it was not serving, and will not\n")
        assert health(health_port, "ready") == (503, "drained")
        assert health(health_port, "live") == (200, "drained")
        while tritonservers(server.pid):
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        assert server.poll() is None
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()


def test_no_server_and_a_dead_one_are_named_with_the_next_step(tmp_path: Path) -> None:
    def refused() -> str:
        command = [sys.executable, "-m", "trireme", "drain"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S, check=False)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        return done.stderr

    assert "no server was started in this folder" in refused()
    text = deployment_text("killed", engine=SLOW)
    with RunningServer(text, tmp_path) as server:
        for process in server.descendants():
            process.kill()
        server.process.kill()
        server.process.wait()
        assert "start it with `trireme serve` if it has ended" in refused()
