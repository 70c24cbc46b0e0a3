# SPDX-License-Identifier: Apache-2.0
"""The numerator: the same requests through the whole ensemble on Triton, over gRPC, by the project's own client."""

import asyncio
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Self

from benchmarks.workload import Ask, Run
from clients.streaming import AsyncTritonClient, GenerateRequest

_READY_S = 120.0


class ThroughEnsemble:
    """`trireme serve` in a child process; ready when entered."""

    def __init__(self, deployment: Path) -> None:
        ports = _free_ports(3)
        self.http = f"127.0.0.1:{ports[0]}"
        self.url = f"127.0.0.1:{ports[1]}"
        options = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, ports), strict=True)
        command = [sys.executable, "-m", "trireme", "serve", "--deployment", str(deployment)]
        self._process = subprocess.Popen([*command, *(part for option in options for part in option)])

    def __enter__(self) -> Self:
        deadline_s = time.monotonic() + _READY_S
        while not asyncio.run(self._is_ready()):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                raise SystemExit("the server did not become ready")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def run(self, ask: Ask) -> Run:
        """All requests at once, to their last token."""
        return asyncio.run(self._run(ask))

    async def _is_ready(self) -> bool:
        async with AsyncTritonClient(self.url) as client:
            return await client.is_ready()

    async def _run(self, ask: Ask) -> Run:
        async with AsyncTritonClient(self.url) as client:
            await client.is_ready()  # the connection is made before the clock starts
            start_s = time.perf_counter()
            results = await asyncio.gather(*(_read(client, ask, prompt) for prompt in ask.prompts))
            seconds = time.perf_counter() - start_s
        num_tokens = sum(count for count, _ in results)
        assert num_tokens == ask.output_tokens * len(ask.prompts)
        ttft_ms = statistics.median(1000 * (first_s - start_s) for _, first_s in results)
        return Run(tokens_per_s=num_tokens / seconds, ttft_ms=ttft_ms)


async def _read(client: AsyncTritonClient, ask: Ask, prompt: str) -> tuple[int, float]:
    request = GenerateRequest(
        text_input=prompt,
        max_tokens=ask.output_tokens,
        min_tokens=ask.output_tokens,
        end_id=-1,
        stream=True,
        exclude_input_in_output=True,
        return_num_output_tokens=True,
    )
    num_tokens, first_s = 0, 0.0
    async for chunk in client.generate(request):
        first_s = first_s or time.perf_counter()
        num_tokens += chunk.num_output_tokens or 0
    return num_tokens, first_s


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [int(sock.getsockname()[1]) for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
