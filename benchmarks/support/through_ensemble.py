# SPDX-License-Identifier: Apache-2.0
"""The numerator: the same requests through the whole ensemble on Triton, over gRPC."""

import asyncio
import contextlib
import itertools
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil
import yaml
from tritonclient.grpc import service_pb2

from benchmarks.support.http2_streams import Http2Streams, Received
from benchmarks.support.workload import Ask, Run, exact_stream
from clients.infer_messages import decode_chunk, encode_request, is_final_response
from clients.streaming import AsyncTritonClient
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.release_spec import ResponseSpec
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.free_ports import free_ports

_READY_S = 120.0


class ThroughEnsemble:
    """`trireme serve` in a child process; ready when entered."""

    def __init__(self, spec: DeploymentSpec, *, model: str = "ensemble") -> None:
        ports = free_ports(3)
        self.http = f"127.0.0.1:{ports[0]}"
        self.url = f"127.0.0.1:{ports[1]}"
        self.metrics = f"127.0.0.1:{ports[2]}"
        self._model = model
        self._spec = spec
        self._folder = tempfile.TemporaryDirectory()
        self._ports = zip(("--http-port", "--grpc-port", "--metrics-port"), map(str, ports), strict=True)

    def __enter__(self) -> Self:
        deployment = Path(self._folder.name) / "deployment.yaml"
        deployment.write_text(yaml.safe_dump(self._spec.model_dump(mode="json")))
        command = [sys.executable, "-m", "trireme", "serve", "--deployment", str(deployment)]
        self._process = subprocess.Popen([*command, *(part for option in self._ports for part in option)])
        deadline_s = time.monotonic() + _READY_S
        while not asyncio.run(self._is_ready()):
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__()
                raise SystemExit("the server did not become ready")
            time.sleep(0.2)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    @property
    def run_dir(self) -> Path:
        """Return the folder of the server's processes."""
        children = psutil.Process(self._process.pid).children()
        [triton] = [child for child in children if child.name() == "tritonserver"]
        return Path(triton.environ()[RUN_DIR_VARIABLE])

    def processes(self) -> list[psutil.Process]:
        """Return the processes of the server, `trireme serve` first."""
        serve = psutil.Process(self._process.pid)
        return [serve, *serve.children(recursive=True)]

    def cpu_s(self) -> float:
        """Return the core seconds of the server's processes up to now."""
        return sum(process.cpu_times().user + process.cpu_times().system for process in self.processes())

    def run(self, ask: Ask, *, releases: Sequence[int] = ()) -> Run:
        """Send every request at once, and read each to its last token.

        Args:
            releases: that the requests name in turn; empty: they name none.
        """
        # Anew for each run, and before its clock starts: the server hangs up on one that is silent between two runs.
        with contextlib.closing(Http2Streams(self.url)) as streams:
            named = zip(ask.prompts, itertools.cycle(releases or [None]), strict=False)
            seen = streams.run([self._message(prompt, ask.output_tokens, release) for prompt, release in named])
        arrivals_s = [[time_s - seen.start_s for time_s in _arrivals_s(received)] for received in seen.received]
        return Run.of(arrivals_s, num_tokens=ask.output_tokens * len(ask.prompts), client_cpu_s=seen.cpu_s)

    def _message(self, prompt: str, output_tokens: int, release: int | None) -> bytes:
        # The reason comes with the last response; a count would be a tensor in each.
        request = exact_stream(prompt, output_tokens, return_finish_reason=True)
        message = encode_request(request, model=self._model, model_version="", request_id="", release=release)
        return bytes(message.SerializeToString())

    async def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):  # Triton opens the port of its metrics last
            host, _, port = self.metrics.rpartition(":")
            socket.create_connection((host, int(port)), timeout=2).close()
            urllib.request.urlopen(f"http://{self.http}/v2/health/ready", timeout=2).close()  # a frontend of its own
            async with AsyncTritonClient(self.url) as client:
                return await client.is_ready(model=self._model)
        return False


def with_responses(spec: DeploymentSpec, responses: ResponseSpec, *, suffix: str) -> DeploymentSpec:
    """Return the deployment with other response settings, under a name of its own."""
    return spec.with_model(responses=responses).model_copy(update={"name": f"{spec.name}_{suffix}"})


def _arrivals_s(received: Received) -> list[float]:
    """Return the time of each response of a stream, in seconds.

    Raises:
        RuntimeError: the stream failed, or did not end with as many tokens as it was asked for.
    """
    times = []
    chunk = None
    for arrived_s, data in received.messages():
        message = service_pb2.ModelStreamInferResponse.FromString(data)
        if message.error_message:
            raise RuntimeError(message.error_message)
        chunk = decode_chunk(message, is_final=is_final_response(message), received_ns=0)
        times.append(arrived_s)
    if chunk is None or not chunk.is_final or chunk.finish_reason != "length":
        raise RuntimeError(f"a stream did not run to its end; its last response: {chunk}")
    return times
