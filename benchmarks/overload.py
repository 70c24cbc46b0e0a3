# SPDX-License-Identifier: Apache-2.0
"""Goodput of the running server under overload, with admission and without: every request as a record.

`python -m benchmarks.overload --help`; half an hour. Open loop: requests are sent when they are due, whatever the
server does, and their latency counts from then. The targets are fixed before any load is put on, as multiples of what
a request has alone; the capacity is the closed loop's of the same run. The records go to
`results/overload_<date>.jsonl.gz`, and every figure is computed from them (`benchmarks.overload_figures`).
"""

import asyncio
import gzip
import random
import statistics
import time
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks.overload_figures import Header, Record, write_figures
from benchmarks.support.report import environment, result_path
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.exact_prompts import PromptMaker
from clients.load.arrivals import SHAPES, arrivals_s
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.admission_spec import AdmissionSpec, SloSpec
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.engines.seam.scheduling import Priority
from serving.text.tokenization import PromptTokenizer
from trireme.base.errors import ServingError, Unavailable

ENGINE = SimulatedEngineSpec(
    provider="simulated", max_num_seqs=64, num_kv_blocks=2048, max_num_batched_tokens=2048, step_ms=40.0
)  # fmt: skip
ADMISSION = AdmissionSpec()  # the defaults are what is measured
MIX = {Priority.PREMIUM: 0.2, Priority.STANDARD: 0.5, Priority.BATCH: 0.3}
TTFT_FACTOR, TPOT_FACTOR = 5.0, 2.0
LOADS = (0.5, 1.0, 2.0, 3.0)
_PROMPT_TOKENS = {16: 1, 32: 3, 64: 4, 128: 3, 256: 1}  # and how often
_PATIENCE_S = 10.0  # of every client, which leaves after that
_say = Console(stderr=True).print


class Load:
    """Requests of mixed lengths, by seed; all classes have the same lengths."""

    def __init__(self, tokenizer: PromptTokenizer, seed: int) -> None:
        self.rng = random.Random(seed)
        # Prompts are made beforehand: a hundred a second would be a load of their own.
        self._prompts = {
            length: PromptMaker(tokenizer, input_tokens=length, seed=seed).prompts(8) for length in _PROMPT_TOKENS
        }

    def request(self, *, is_told: bool) -> tuple[GenerateRequest, Record]:
        """Return a request and its record.

        Args:
            is_told: the request says its class and deadline; upstream's server does not know them.
        """
        rng = self.rng
        priority = rng.choices([*MIX], [*MIX.values()])[0]
        num_prompt = rng.choices([*_PROMPT_TOKENS], [*_PROMPT_TOKENS.values()])[0]
        num_output = int(min(200, max(4, rng.lognormvariate(3.6, 0.7))))
        request = GenerateRequest(
            text_input=rng.choice(self._prompts[num_prompt]),
            max_tokens=num_output,
            stream=True,
            exclude_input_in_output=True,
            return_num_output_tokens=True,
            priority=int(priority) if is_told else None,
            tenant=rng.choice("abcd") if is_told else None,
        )
        return request, Record(priority=int(priority), num_prompt_tokens=num_prompt, max_tokens=num_output)


async def ask(client: AsyncTritonClient, request: GenerateRequest, record: Record, due_s: float) -> None:
    """Send a request and note what becomes of it, in milliseconds from when it was due."""
    try:
        async for chunk in client.generate(request, timeout_s=_PATIENCE_S):
            now_ms = 1000 * (time.perf_counter() - due_s)
            if record.first_ms is None:
                record.first_ms = now_ms
            record.last_ms = now_ms
            record.num_tokens += chunk.num_output_tokens or 0
        record.end = "done"
    except Unavailable:
        record.end = "refused"
    except ServingError as exc:
        record.end = exc.code
    record.end_ms = 1000 * (time.perf_counter() - due_s)


async def open_loop(url: str, load: Load, due: list[float], *, is_told: bool) -> list[Record]:
    """Send every request when it is due, and return the records."""
    records, tasks = [], []
    async with AsyncTritonClient(url) as client:
        start_s = time.perf_counter() + 0.2
        for at in due:
            request, record = load.request(is_told=is_told)
            record.due_s = at
            await asyncio.sleep(max(0.0, start_s + at - time.perf_counter()))
            records.append(record)
            tasks.append(asyncio.create_task(ask(client, request, record, start_s + at)))
        await asyncio.gather(*tasks)
    return records


async def closed_loop(url: str, load: Load, *, num_clients: int, seconds: float) -> float:
    """Return the requests done per second by clients that each wait for their answer.

    The first and the last fifth of the time do not count.
    """
    ends_s: list[float] = []

    async def one(client: AsyncTritonClient) -> None:
        while time.perf_counter() < end_s:
            request, record = load.request(is_told=False)
            await ask(client, request, record, time.perf_counter())
            ends_s.append(time.perf_counter())

    start_s = time.perf_counter()
    end_s = start_s + seconds
    async with AsyncTritonClient(url) as client:
        await asyncio.gather(*(one(client) for _ in range(num_clients)))
    low_s, high_s = start_s + 0.2 * seconds, start_s + 0.8 * seconds
    return sum(low_s <= at < high_s for at in ends_s) / (high_s - low_s)


async def alone(url: str, load: Load, count: int) -> list[Record]:
    """Send one request after the other, and return the records."""
    records = []
    async with AsyncTritonClient(url) as client:
        for _ in range(count):
            request, record = load.request(is_told=False)
            records.append(record)
            await ask(client, request, record, time.perf_counter())
    return records


def deployment(*, admission: AdmissionSpec | None = None, slo: SloSpec | None = None) -> DeploymentSpec:
    """Return a deployment of the engine without a model, with admission or without."""
    tokenizer = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer
    return DeploymentSpec.of_one(
        name="overload", tokenizer=tokenizer, engine=ENGINE, admission=admission, slo=slo or SloSpec()
    )


def measured_header(load: Load, seed: int) -> Header:
    """Return the targets, from requests that are alone, and the closed loop's capacity, both without admission."""
    with ThroughEnsemble(deployment()) as server:
        where = environment(triton_http=server.http)
        by_itself = asyncio.run(alone(server.url, load, 35))[5:]
        capacity_per_s = asyncio.run(closed_loop(server.url, load, num_clients=2 * ENGINE.max_num_seqs, seconds=30.0))
    ttft_ms = TTFT_FACTOR * statistics.median(record.first_ms or 0.0 for record in by_itself)
    tpot_ms = TPOT_FACTOR * statistics.median(record.tpot_ms for record in by_itself if record.num_tokens > 1)
    _say(f"targets: TTFT {ttft_ms:.0f} ms, TPOT {tpot_ms:.1f} ms; capacity {capacity_per_s:.1f} requests/s")
    return Header(
        ttft_target_ms=ttft_ms, tpot_target_ms=tpot_ms, capacity_per_s=capacity_per_s, environment=where,
        engine=ENGINE.model_dump(mode="json"), admission=ADMISSION.model_dump(mode="json"), seed=seed,
    )  # fmt: skip


def main(
    premium: Annotated[int, typer.Option(min=20, help="Requests of the highest class at each load.")] = 1000,
    shapes: Annotated[str, typer.Option(help="Shapes of arrivals, separated by commas.")] = "poisson,bursty",
    premium_without: Annotated[
        int, typer.Option(min=20, help="Requests without admission, which has no classes.")
    ] = 400,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and classes.")] = 1,
) -> None:
    """Measure, write the records, and print what follows from them."""
    tokenizer = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer
    load = Load(PromptTokenizer.from_spec(tokenizer), seed)
    if not set(shapes.split(",")) <= set(SHAPES):
        raise typer.BadParameter(f"a shape is one of {', '.join(SHAPES)}; got {shapes!r}")
    header = measured_header(load, seed)
    capacity_per_s = header.capacity_per_s
    kinds = {"none": deployment(), "admission": deployment(admission=ADMISSION, slo=header.slo())}
    counts = {"none": premium_without, "admission": premium}
    path = result_path("overload", str(header.environment["commit"])).with_suffix(".jsonl.gz")
    records: list[Record] = []
    for shape in shapes.split(","):
        for factor in LOADS:
            per_s = factor * capacity_per_s
            for kind, spec in kinds.items():
                seconds = counts[kind] / (per_s * MIX[Priority.PREMIUM])
                due = list(arrivals_s(random.Random(seed), shape, per_s, seconds))
                _say(f"{shape} {factor:g}x {kind}: {len(due)} requests in {seconds:.0f} s")
                with ThroughEnsemble(spec) as server:
                    asyncio.run(alone(server.url, load, 5))  # a server that runs knows how long its steps take
                    found = asyncio.run(open_loop(server.url, load, due, is_told=kind == "admission"))
                for record in found:
                    record.kind, record.shape, record.load = kind, shape, factor
                records += found
                write_records(path, header, records)
    write_figures(path)


def write_records(path: Path, header: Header, records: list[Record]) -> None:
    """Write the header, and a line for each request."""
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        file.write(msgspec.json.encode(header) + b"\n")
        file.writelines(msgspec.json.encode(record) + b"\n" for record in records)


if __name__ == "__main__":
    typer.run(main)
