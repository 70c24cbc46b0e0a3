# SPDX-License-Identifier: Apache-2.0
"""Two language models and a small embedding model on one server that share a device.

Measured are what they hold together, their shares, and the effect of one model's flood on the other where they share
nothing.

`python -m benchmarks.studies.shared_device --help`; three minutes. The language models are the simulated engine;
Triton's own rate limiter is on as well, and binds the embedding model. Writes `results/shared_device_<date>.json`.
"""

import asyncio
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import tritonclient.grpc.aio as grpcclient
import typer
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.support.report import environment, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.shared_budget.shared_ledger import LEDGER_FILE, SharedLedger
from trireme.base.errors import Unavailable
from trireme.base.sample_statistics import percentile

MODELS = ("small", "large")
NUM_STREAMS = 8  # of both models together
NUM_SEATS = 16  # of each engine
_PROJECT = Path(__file__).resolve().parents[2]
_NUM_CLIENTS = 24  # of each model; each wants one stream all the time
_SETTLE_S = 2.0  # until both are saturated
_NEIGHBOUR_PER_S = 10.0
_say = Console(stderr=True).print


def shared_deployment(weights: tuple[float, float], *, step_ms: float = 10.0) -> DeploymentSpec:
    """Return a deployment in which both models hold streams of one pool."""
    streams = {"name": "streams", "count": NUM_STREAMS}
    budgets: list[dict[str, object]] = [{"shared": {"resources": [streams], "weight": weight}} for weight in weights]
    return _deployment(budgets, resources=["device", "device", "device"], step_ms=step_ms)


def unshared_deployment(*, step_ms: float = 10.0) -> DeploymentSpec:
    """Return a deployment in which the models share one unit of a resource of Triton's rate limiter."""
    return _deployment([{}, {}], resources=["device", "device", "device"], step_ms=step_ms)


def separate_deployment(*, step_ms: float = 20.0) -> DeploymentSpec:
    """Return a deployment in which each model has its own resources, of ours and of Triton's."""
    return _deployment([{}, {}], resources=["of_small", "of_large", "of_embedding"], step_ms=step_ms)


def _deployment(budgets: list[dict[str, object]], *, resources: list[str], step_ms: float) -> DeploymentSpec:
    tokenizer = {"dir": _PROJECT / "examples/demo_model/target"}
    engine = {"provider": "simulated", "step_ms": step_ms, "max_num_seqs": NUM_SEATS, "num_kv_blocks": 4096}
    limits = [{"resources": [{"name": name}]} for name in resources]
    models = [
        {"name": name, "tokenizer": tokenizer, "engine": engine, "rate_limiter": limit}
        | {"admission": {"budget": budget, "queue": {"max_requests": 64}}}
        for name, budget, limit in zip(MODELS, budgets, limits, strict=False)
    ]
    embedding = {"name": "embedding", "dir": _PROJECT / "examples/embedding_model", "rate_limiter": limits[-1]}
    return DeploymentSpec.model_validate({
        "name": "shared_device",
        "models": models,
        "extra_models": [embedding],
        "rate_limiter": [{"name": name, "count": 1} for name in dict.fromkeys(resources)],
    })  # fmt: skip


@dataclass(frozen=True)
class Generation:
    """A generation by the engine's own clock: from its start to its last token."""

    model: str
    begin_ns: int
    end_ns: int


@dataclass
class Saturated:
    """Results of a time in which both models always wanted more; counts and shares are of [begin_ns, end_ns)."""

    begin_ns: int = 0
    end_ns: int = 0
    generations: list[Generation] = field(default_factory=list)
    starts: Counter[str] = field(default_factory=Counter)
    held: list[int] = field(default_factory=list)  # samples of the ledger
    num_embedded: int = 0

    def most_at_once(self) -> int:
        """Return the most generations of both models at one time, whatever the ledger says."""
        changes = sorted([(g.begin_ns, 1) for g in self.generations] + [(g.end_ns, -1) for g in self.generations])
        running = most = 0
        for _, change in changes:
            running += change
            most = max(most, running)
        return most

    def held_s(self, model: str) -> float:
        """Return the stream-seconds of a model."""
        parts = (
            min(g.end_ns, self.end_ns) - max(g.begin_ns, self.begin_ns) for g in self.generations if g.model == model
        )
        return sum(max(0, part) for part in parts) / 1e9


async def saturate(url: str, ledger: SharedLedger, *, duration_s: float, max_tokens: int = 20) -> Saturated:
    """Run clients of both models that ask again at once, and one of the embedding model.

    The ledger is sampled.
    """
    seen = Saturated()
    begin_s = time.monotonic() + _SETTLE_S
    end_s = begin_s + duration_s

    async def generate(client: AsyncTritonClient, model: str) -> None:
        request = GenerateRequest(text_input="hello", max_tokens=max_tokens, stream=True, return_perf_metrics=True)
        while time.monotonic() < end_s + 0.5:  # so that the window's end is saturated, too
            async for chunk in client.generate(request, model=f"{model}_ensemble"):
                if chunk.is_final and chunk.perf is not None:  # every chunk tells, the last one of all of it
                    span = (int(chunk.perf[f"{which}_time_ns"]) for which in ("first_scheduled", "last_token"))
                    seen.generations.append(Generation(model, *span))

    async def sample() -> None:
        await asyncio.sleep(begin_s - time.monotonic())
        before, seen.begin_ns = _num_starts(ledger), time.time_ns()
        while time.monotonic() < end_s:
            streams = ledger.resources().get("streams")  # none where nothing is shared
            seen.held.append(0 if streams is None else streams.held)
            await asyncio.sleep(0.002)
        seen.starts, seen.end_ns = _num_starts(ledger), time.time_ns()
        seen.starts.subtract(before)

    async def embed() -> None:
        async with grpcclient.InferenceServerClient(url) as client:
            while time.monotonic() < end_s:
                await embed_once(client, "What is the capital of France?")
                seen.num_embedded += 1
                await asyncio.sleep(0.02)

    async with AsyncTritonClient(url) as client:
        clients = (generate(client, model) for model in MODELS for _ in range(_NUM_CLIENTS))
        await asyncio.gather(*clients, sample(), embed())
    return seen


async def embed_once(client: grpcclient.InferenceServerClient, text: str) -> NDArray[np.float32]:
    """Return the embedding of a text, ``[256] float32``."""
    tensor = grpcclient.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    return np.asarray((await client.infer("embedding", [tensor])).as_numpy("embedding")[0])


def _num_starts(ledger: SharedLedger) -> Counter[str]:
    return Counter({member.name.partition("_")[0]: member.num_starts for member in ledger.members()})


async def neighbour_ttft_ms(url: str, *, duration_s: float, is_flooded: bool, seed: int) -> list[float]:
    """Return the times to first token of the small model at a steady load, in milliseconds.

    With `is_flooded`, a hundred clients press on the large model.
    """
    rng, ttft_ms = random.Random(seed), []
    end_s = time.monotonic() + duration_s + (_SETTLE_S if is_flooded else 0)

    async def flood(client: AsyncTritonClient) -> None:
        request = GenerateRequest(text_input="hello", max_tokens=100, stream=True)
        while time.monotonic() < end_s:
            try:
                async for _ in client.generate(request, model="large_ensemble"):
                    if time.monotonic() > end_s:
                        break
            except Unavailable:  # its queue is full
                await asyncio.sleep(0.2)

    async def ask(client: AsyncTritonClient) -> None:
        request = GenerateRequest(text_input="hello", max_tokens=10, stream=True)
        sent_s, is_first = time.perf_counter(), True
        async for _ in client.generate(request, model="small_ensemble"):
            if is_first:
                ttft_ms.append(1000 * (time.perf_counter() - sent_s))
                is_first = False

    async with AsyncTritonClient(url) as client, AsyncTritonClient(url) as other:
        tasks = [asyncio.create_task(flood(other)) for _ in range(100 if is_flooded else 0)]
        await asyncio.sleep(_SETTLE_S if is_flooded else 0)
        while time.monotonic() < end_s:
            tasks.append(asyncio.create_task(ask(client)))
            await asyncio.sleep(rng.expovariate(_NEIGHBOUR_PER_S))
        await asyncio.gather(*tasks)
    return ttft_ms


def watch(run_dir: Path) -> SharedLedger:
    """Return a member of a server's ledger that takes nothing."""
    return SharedLedger(run_dir / LEDGER_FILE, member="watcher", weight=1.0, counts={})


def measure_shares(weights: tuple[float, float], *, duration_s: float) -> dict[str, object]:
    """Measure both models saturated on one pool."""
    with ThroughEnsemble(shared_deployment(weights), model="small_ensemble") as server:
        ledger = watch(server.run_dir)
        seen = asyncio.run(saturate(server.url, ledger, duration_s=duration_s))
        use = ledger.resources()["streams"]
        ledger.close()
    held_s = {model: seen.held_s(model) for model in MODELS}
    return {
        "weights": dict(zip(MODELS, weights, strict=True)),
        "count": use.count,
        "high_water": use.high_water,
        "most_generations_at_once": seen.most_at_once(),
        "num_samples": len(seen.held),
        "mean_held": round(statistics.mean(seen.held), 3),
        "starts": {model: seen.starts[model] for model in MODELS},
        "starts_ratio": round(seen.starts["large"] / seen.starts["small"], 3),
        "held_s": {model: round(value, 2) for model, value in held_s.items()},
        "held_ratio": round(held_s["large"] / held_s["small"], 3),
        "num_embedded": seen.num_embedded,
    }


def measure_unshared(*, duration_s: float) -> dict[str, object]:
    """Measure the load of both models where only Triton's rate limiter is on, with one unit for both."""
    with ThroughEnsemble(unshared_deployment(), model="small_ensemble") as server:
        ledger = watch(server.run_dir)
        seen = asyncio.run(saturate(server.url, ledger, duration_s=duration_s))
        ledger.close()
    return {"triton_count": 1, "most_generations_at_once": seen.most_at_once()}


def measure_neighbour(*, duration_s: float, num_rounds: int) -> dict[str, object]:
    """Measure the small model's time to the first token, alone and beside a flood, in turn."""
    ttft_ms: dict[bool, list[float]] = {False: [], True: []}
    with ThroughEnsemble(separate_deployment(), model="small_ensemble") as server:
        for seed, is_flooded in _in_turn(num_rounds):
            ttft_ms[is_flooded] += asyncio.run(
                neighbour_ttft_ms(server.url, duration_s=duration_s, is_flooded=is_flooded, seed=seed)
            )
    figures: dict[str, object] = {
        name: {"requests": len(times)} | {f"p{p}": round(percentile(times, p, method="higher"), 2) for p in (50, 99)}
        for name, times in (("alone_ttft_ms", ttft_ms[False]), ("flooded_ttft_ms", ttft_ms[True]))
    }
    moved = percentile(ttft_ms[True], 99, method="higher") / percentile(ttft_ms[False], 99, method="higher")
    return {**figures, "p99_flooded_over_alone": round(moved, 3)}


def _in_turn(num_rounds: int) -> Iterator[tuple[int, bool]]:
    for seed in range(num_rounds):
        yield seed, seed % 2 == 1


def main(
    duration_s: Annotated[float, typer.Option(help="Duration of each run, without its start.")] = 15.0,
    num_rounds: Annotated[int, typer.Option(help="Rounds of the neighbour, alone and flooded in turn.")] = 6,
) -> None:
    """Measure, print and write the figures."""
    shares = []
    for weights in ((1.0, 1.0), (1.0, 2.0), (1.0, 4.0)):
        shares.append(measure_shares(weights, duration_s=duration_s))
        _say(shares[-1])
    unshared = measure_unshared(duration_s=duration_s)
    _say(unshared)
    apart = measure_neighbour(duration_s=duration_s, num_rounds=num_rounds)
    _say(apart)
    result: dict[str, object] = {
        "shares": shares,
        "triton_alone": unshared,
        "apart": apart,
        "environment": environment(),
    }
    path = write_result("shared_device", result | {"environment": environment()})
    _say(f"written to {path}")


if __name__ == "__main__":
    typer.run(main)
