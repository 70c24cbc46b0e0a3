# SPDX-License-Identifier: Apache-2.0
"""The loads on the whole server: `trireme serve` on the real Triton, the model `ensemble`, over gRPC."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import yaml

from build_engines.prove.check import CheckFailed
from build_engines.prove.child_process import end_group
from build_engines.prove.closed_loop import ClosedLoop, Measured, SteadyLoad
from build_engines.stages.stage_process import last_lines
from clients.exact_prompts import PromptMaker
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.text.tokenization import PromptTokenizer
from trireme.base.free_ports import free_ports

_STOP_S = 60.0
_POLL_S = 0.5


def bench_server(spec: DeploymentSpec, loads: Sequence[SteadyLoad], work: Path, timeout_s: float) -> list[Measured]:
    """Serve a deployment and put it under each load in turn.

    Args:
        spec: the deployment.
        loads: the loads in order.
        work: folder for deployment, model repository and log.
        timeout_s: time limit until the server is ready, and for each load.

    Raises:
        CheckFailed: the server did not become ready, or a load took too long.
        ServingError: a request failed.
    """
    tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
    with running_server(spec, work, timeout_s) as url:
        measured = []
        for seed, load in enumerate(loads):
            maker = PromptMaker(tokenizer, input_tokens=load.isl, seed=seed)
            try:
                measured.append(asyncio.run(asyncio.wait_for(run_load(url, load, maker), timeout_s)))
            except TimeoutError as exc:
                raise CheckFailed(f"{load.concurrency} clients had not ended within {timeout_s:.0f} s") from exc
        return measured


async def run_load(url: str, load: SteadyLoad, maker: PromptMaker) -> Measured:
    """Run a load to its end, over one connection."""
    loop = ClosedLoop(load)
    async with AsyncTritonClient(url) as client, asyncio.TaskGroup() as group:
        everybody = [group.create_task(_ask_again_and_again(client, loop, maker)) for _ in range(load.concurrency)]
        while not loop.is_over and not any(task.done() for task in everybody):
            await asyncio.sleep(0.01)
        for task in everybody:
            task.cancel()
    return loop.measured()


async def _ask_again_and_again(client: AsyncTritonClient, loop: ClosedLoop, maker: PromptMaker) -> None:
    while not loop.is_over:
        (prompt,) = maker.prompts(1)
        turn = loop.send(time.monotonic_ns())
        request = GenerateRequest(
            text_input=prompt,
            max_tokens=turn.num_tokens,
            min_tokens=turn.num_tokens,
            end_id=-1,
            stream=True,
            exclude_input_in_output=True,
            return_num_output_tokens=True,
        )
        received_ns = 0
        async for chunk in client.generate(request):
            received_ns = chunk.received_ns
            if chunk.num_output_tokens:
                loop.arrive(turn.number, chunk.num_output_tokens, received_ns)
        loop.end(turn.number, received_ns)


@contextmanager
def running_server(spec: DeploymentSpec, work: Path, timeout_s: float) -> Iterator[str]:
    """Yield ``host:port`` of the gRPC of `trireme serve` in a child process when it is ready; drain it at the end.

    Raises:
        CheckFailed: the server ended, or did not become ready in time.
    """
    folder, log = work / f"server_{spec.name}", work / "logs" / f"serve_{spec.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    deployment = folder / "deployment.yaml"
    deployment.write_text(yaml.safe_dump(spec.model_dump(mode="json")), encoding="utf-8")
    http, grpc, metrics = free_ports(3)
    argv = [sys.executable, "-m", "trireme", "serve", "--deployment", str(deployment), "--verbose"]
    argv += ["--http-port", str(http), "--grpc-port", str(grpc), "--metrics-port", str(metrics)]
    argv += ["--ready-timeout-s", str(timeout_s)]
    url = f"127.0.0.1:{grpc}"
    with log.open("wb") as output:
        process = subprocess.Popen(argv, cwd=folder, stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_until_ready(process, url, log, timeout_s)
        yield url
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str, log: Path, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not asyncio.run(_is_ready(url)):
        if process.poll() is not None:
            raise CheckFailed(f"trireme serve ended with status {process.returncode}", last_lines(log))
        if time.monotonic() > deadline_s:
            raise CheckFailed(f"trireme serve was not ready after {timeout_s:.0f} s", last_lines(log))
        time.sleep(_POLL_S)


async def _is_ready(url: str) -> bool:
    async with AsyncTritonClient(url) as client:
        return await client.is_ready()
