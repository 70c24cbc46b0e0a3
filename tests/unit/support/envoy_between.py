# SPDX-License-Identifier: Apache-2.0
"""A real Envoy between a client and two small gRPC servers, a stable and a candidate one, on this machine."""

import asyncio
import contextlib
import json
import subprocess
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
from envoy_here import ENVOY

from clients.rollout.export.envoy_routes import RELEASE_HEADER
from trireme.base.free_ports import free_ports

ASK, STREAM = "/test.Release/Ask", "/test.Release/Stream"
NUM_CHUNKS = 30
AT_A_TIME = 64
Headers = Sequence[tuple[str, str]]


def validate(config: Path) -> str:
    """Return what Envoy itself says of a configuration.

    Raises:
        AssertionError: Envoy refuses it.
    """
    command = [str(ENVOY), "--mode", "validate", "-c", str(config), "--log-level", "warn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    assert not done.stderr, done.stderr  # a warning, such as of a deprecated field
    return done.stdout


class Release:
    """A server that answers with its name: once, or in chunks."""

    def __init__(self, name: str, chunk_pause_s: float, port: int, *, host: str = "127.0.0.1") -> None:
        self.name = name
        self.num_requests = 0
        self._chunk_pause_s = chunk_pause_s
        self.host, self.port = host, port

    async def __aenter__(self) -> Self:
        self._server = grpc.aio.server()  # belongs to the loop in which it is made
        handlers = {
            "Ask": grpc.unary_unary_rpc_method_handler(self._ask),
            "Stream": grpc.unary_stream_rpc_method_handler(self._stream),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Release", handlers),))
        assert self._server.add_insecure_port(f"{self.host}:{self.port}") == self.port
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    async def _ask(self, _request: bytes, _context: object) -> bytes:
        self.num_requests += 1
        return self.name.encode()

    async def _stream(self, _request: bytes, _context: object) -> AsyncIterator[bytes]:
        self.num_requests += 1
        for _ in range(NUM_CHUNKS):
            yield self.name.encode()
            await asyncio.sleep(self._chunk_pause_s)


class Client:
    """A client of an Envoy."""

    def __init__(self, channel: Any) -> None:
        self._ask = channel.unary_unary(ASK)
        self._stream = channel.unary_stream(STREAM)

    async def ask(self, headers: Headers = ()) -> str:
        """Return the name of the server that answered; the metadata says the same."""
        call = self._ask(b"", metadata=tuple(headers))
        name: str = (await call).decode()
        assert dict(await call.initial_metadata())[RELEASE_HEADER] == name
        return name

    async def ask_each(self, headers: Sequence[Headers]) -> list[str]:
        """Return the server that answered each request, asked a few at a time.

        The Python server itself cancels some of 2,000 at a time, without Envoy too.
        """
        names = [""] * len(headers)
        left = iter(range(len(headers)))

        async def worker() -> None:
            for number in left:
                names[number] = await self.ask(headers[number])

        await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))
        return names

    async def ask_often(self, number: int, headers: Headers = ()) -> Counter[str]:
        """Return how often each server answered."""
        return Counter(await self.ask_each([headers] * number))

    async def stream(self, headers: Headers = ()) -> str:
        """Return the name of the server that answered, from its first chunk to its last."""
        chunks = [chunk.decode() async for chunk in self._stream(b"", metadata=tuple(headers))]
        assert len(chunks) == NUM_CHUNKS
        [name] = set(chunks)
        return str(name)


class Between:
    """An Envoy, both servers and a client; `options` are what `trireme rollout export` needs for their addresses."""

    def __init__(self, folder: Path, *, chunk_pause_s: float = 0.05) -> None:
        self._folder = folder
        # Four that differ: gRPC and Envoy both let another listen on their port, and would share it without a word.
        stable, candidate, listen, admin = free_ports(4)
        self.stable = Release("stable", chunk_pause_s, stable)
        self.candidate = Release("candidate", chunk_pause_s, candidate)
        self.listen, self.admin = f"127.0.0.1:{listen}", f"127.0.0.1:{admin}"
        self.options = [
            *["--stable-url", f"127.0.0.1:{self.stable.port}", "--candidate-url", f"127.0.0.1:{self.candidate.port}"],
            *["--listen", self.listen, "--admin", self.admin],
        ]

    @contextlib.asynccontextmanager
    async def run(self, config: Path) -> AsyncIterator[Client]:
        """Run until the block ends; Envoy must still be alive then."""
        log = self._folder / "envoy.log"
        command = [str(ENVOY), "-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warn"]
        async with self.stable, self.candidate:
            with log.open("w") as file:
                process = subprocess.Popen(command, stdout=file, stderr=file)
            try:
                async with grpc.aio.insecure_channel(self.listen) as channel:
                    await asyncio.wait_for(channel.channel_ready(), 20)
                    yield Client(channel)
                assert process.poll() is None, log.read_text()
            finally:
                process.terminate()
                process.wait(20)

    def statistic(self, name: str) -> int:
        """Return one of Envoy's counters."""
        with urllib.request.urlopen(f"http://{self.admin}/stats?format=json&filter=^{name}$", timeout=10) as answer:
            found = json.load(answer)["stats"]
        return sum(int(each["value"]) for each in found)
