# SPDX-License-Identifier: Apache-2.0
"""The cost of two engines that are in memory by turns.

Measured are the first token of one that has to come, and how often two that are asked all the time change places.

    python -m benchmarks.studies.engine_turns [--model build/random_125m/deployment.yaml]
"""

import asyncio
import statistics
import time
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.support.metrics_page import metric
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.streaming import AsyncTritonClient, GenerateRequest, TritonClient
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.model_spec import ModelSpec
from ensemble_configs.spec.release_spec import OnDemandSpec

_POOL_MIB = 1000  # which engine takes how much does not matter: two never fit
_LOOP_S = 30.0
_CLIENTS = 4
_TOKENS = 32
_WAITS_S = 120.0


def main(
    model: Annotated[
        Path, typer.Option(help="Deployment whose model takes turns with the demo model; the demo's own by itself.")
    ] = DEFAULT_DEPLOYMENT,
    rounds: Annotated[int, typer.Option(help="Changes to measure.")] = 9,
) -> None:
    """Measure, write and print the figures."""
    first, second = load_deployment(DEFAULT_DEPLOYMENT).model, load_deployment(model).model
    with ThroughEnsemble(_deployment(first, second, min_resident_s=0.0), model="a_ensemble") as server:
        costs = {name: _costs(server.url, name, rounds) for name in ("a", "b")}
        loads = {name: _metric(server, "trireme_engine_load_seconds", name) for name in ("a", "b")}
        where = environment(triton_http=server.http)
    turns = [_turns(first, second, min_resident_s) for min_resident_s in (1.0, 5.0)]
    result: dict[str, object] = {
        "benchmark": "engine_turns",
        "models": {"a": str(DEFAULT_DEPLOYMENT.name), "b": str(model.name)},
        "first_token_s": costs,
        "last_load_s": loads,
        "turns": turns,
        "environment": where,
    }
    typer.echo(f"written to {write_result(f'engine_turns_{second.name}', result)}")
    for name, cost in costs.items():
        typer.echo(
            f"{name}: {cost['there']['median']:.3f} s when it is there, {cost['comes']['median']:.3f} when it comes"
        )
    for each in turns:
        typer.echo(str(each))


def _deployment(first: ModelSpec, second: ModelSpec, *, min_resident_s: float) -> DeploymentSpec:
    turns = OnDemandSpec(
        pool_mib=_POOL_MIB, memory_mib=_POOL_MIB, min_resident_s=min_resident_s, max_slice_s=min_resident_s
    )
    return DeploymentSpec(
        name="turns",
        models=tuple(
            each.model_copy(update={"name": name, "prefix": f"{name}_", "endpoints": ("ensemble",), "on_demand": turns})
            for name, each in (("a", first), ("b", second))
        ),
    )


def _costs(url: str, name: str, rounds: int) -> dict[str, dict[str, float]]:
    """Return the seconds to the first token of an engine in memory, and of one that takes the place of another."""
    other = {"a": "b", "b": "a"}[name]
    there, comes = [], []
    for _ in range(rounds):
        _first_token_s(url, other)
        comes.append(_first_token_s(url, name))
        there.append(statistics.median(_first_token_s(url, name) for _ in range(3)))
    return {"there": median_with_interval(there), "comes": median_with_interval(comes)}


def _first_token_s(url: str, name: str) -> float:
    request = GenerateRequest(text_input="Once upon a time", max_tokens=4, stream=True, exclude_input_in_output=True)
    with TritonClient(url) as client:
        start_s = time.perf_counter()
        answer = client.generate(request, model=f"{name}_ensemble", timeout_s=_WAITS_S)
        next(answer)
        first_s = time.perf_counter() - start_s
        for _ in answer:
            pass
    return first_s


def _turns(first: ModelSpec, second: ModelSpec, min_resident_s: float) -> dict[str, object]:
    """Measure both engines, asked all the time by a few clients each that wait for their answers."""
    with ThroughEnsemble(_deployment(first, second, min_resident_s=min_resident_s), model="a_ensemble") as server:
        before = {name: _metric(server, "trireme_engine_loads_total", name) for name in ("a", "b")}
        waits = asyncio.run(_ask_both(server.url))
        loads = sum(_metric(server, "trireme_engine_loads_total", name) - before[name] for name in ("a", "b"))
    return {
        "min_resident_s": min_resident_s,
        "seconds": _LOOP_S,
        "loads": loads,
        "most_loads": _LOOP_S / max(min_resident_s, 1e-9) + 1,
        "answers": {name: len(waits[name]) for name in waits},
        "longest_wait_s": {name: max(waits[name], default=0.0) for name in waits},
    }


async def _ask_both(url: str) -> dict[str, list[float]]:
    """Return the seconds of each answer, by model."""
    waits: dict[str, list[float]] = {"a": [], "b": []}
    end_s = time.perf_counter() + _LOOP_S

    async def ask(name: str) -> None:
        request = GenerateRequest(text_input="Once upon a time", max_tokens=_TOKENS, exclude_input_in_output=True)
        async with AsyncTritonClient(url) as client:
            while time.perf_counter() < end_s:
                start_s = time.perf_counter()
                async for _ in client.generate(request, model=f"{name}_ensemble", timeout_s=_WAITS_S):
                    pass
                waits[name].append(time.perf_counter() - start_s)

    await asyncio.gather(*(ask(name) for name in waits for _ in range(_CLIENTS)))
    return waits


def _metric(server: ThroughEnsemble, name: str, model: str) -> float:
    return metric(server.metrics, name, model=f"{model}_tensorrt_llm")


if __name__ == "__main__":
    typer.run(main)
