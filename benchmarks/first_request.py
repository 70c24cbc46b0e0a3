# SPDX-License-Identifier: Apache-2.0
"""TTFT of the first request after a start, over the TTFT of later requests; with the warm-up and without.

    python -m benchmarks.first_request [--model build/random_125m/deployment.yaml | --model simulated]

A server is started for each figure, for there is one first request in its life. All requests of a server go one at a
time over one connection, which is there before the first; each has a text of its own and waits as long before it is
sent as the first has: a request behind a pause takes longer than one behind another request (caches, sleeping cores),
on a warm server too, and the first request always has a pause before it.

Two figures for each: all prompts as long as the first (`same_length`), and lengths of which none comes twice in a row
(`other_lengths`). OpenVINO compiles for each number of tokens that a step has, and keeps few: a first request pays for
that as any other does whose length is new.
"""

import asyncio
import itertools
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.exact_prompts import PromptMaker
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from serving.text.tokenization import PromptTokenizer

_ENTRIES = ("ensemble", "tensorrt_llm_bls", "ensemble_graph")
_SIMULATED = Path("simulated")
_PAUSE_S = 0.2  # before each request, the first after a start too
_TOKENS = 8
_LENGTHS = range(20, 44)  # of prompts; half a kernel cache's worth and more lies between two uses of one
_FIRST_LENGTH = 24


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Times to the first token on one server: of the first request, and the medians of the later ones."""

    first_ms: float
    same_length_ms: float
    other_lengths_ms: float
    ready_s: float = 0.0


class Row(msgspec.Struct):
    """A setting, an entry and a way of asking, with every start."""

    is_warmed_up: bool
    entry: str
    is_streaming: bool
    starts: list[Start] = []

    def ratios(self) -> dict[str, dict[str, float]]:
        """Return the first request's time over the later ones', by their kind."""
        return {
            "same_length": median_with_interval([start.first_ms / start.same_length_ms for start in self.starts]),
            "other_lengths": median_with_interval([start.first_ms / start.other_lengths_ms for start in self.starts]),
        }


def main(
    model: Annotated[
        Path, typer.Option(help="Deployment file, or the word simulated.", show_default="the demo model's")
    ] = DEFAULT_DEPLOYMENT,
    starts: Annotated[int, typer.Option(min=3, help="Starts of a server, for each entry, way and setting.")] = 9,
    streams_only: Annotated[bool, typer.Option("--streams-only", help="Ask for no whole responses.")] = False,
    steady: Annotated[int, typer.Option(min=8, help="Requests of each kind after the first.")] = 12,
) -> None:
    """Measure, write and print the figures."""
    spec = _deployment(model)
    rows = [
        Row(is_warmed_up, entry, is_streaming)
        for is_warmed_up in (False, True)
        for entry in _ENTRIES
        for is_streaming in ((True, False) if is_warmed_up and not streams_only else (True,))
    ]
    _measure(spec, rows[0], steady=8, seed=0)  # the client has a first request, too
    where: dict[str, object] = {}
    for number in range(1, starts + 1):
        # All settings in each round, so that what changes on the machine changes for all of them.
        for row in random.Random(number).sample(rows, len(rows)):
            found, where = _measure(spec, row, steady=steady, seed=number)
            row.starts.append(found)
        typer.echo(f"round {number} of {starts}, load {os.getloadavg()[0]:.1f}", err=True)
    typer.echo("\n".join(map(_line, rows)))
    result: dict[str, object] = {
        "benchmark": "first_request",
        "model": spec.name,
        "provider": spec.model.engine.provider,
        "pause_s": _PAUSE_S,
        "prompt_tokens": {"first": _FIRST_LENGTH, "other_lengths": [_LENGTHS.start, _LENGTHS.stop - 1]},
        "ready_s": {
            name: median_with_interval(
                [start.ready_s for row in rows if row.is_warmed_up is is_on for start in row.starts]
            )
            for name, is_on in (("warm_up_off", False), ("warm_up_on", True))
        },
        "rows": [msgspec.to_builtins(row) | {"ratios": row.ratios()} for row in rows],
        "environment": where,
    }
    typer.echo(f"written to {write_result(f'first_request_{spec.name}', result)}")


def _deployment(model: Path) -> DeploymentSpec:
    if model != _SIMULATED:
        return load_deployment(model)
    spec = load_deployment(DEFAULT_DEPLOYMENT).with_model(engine=SimulatedEngineSpec(provider="simulated"))
    return spec.model_copy(update={"name": "simulated"})


def _measure(spec: DeploymentSpec, row: Row, *, steady: int, seed: int) -> tuple[Start, dict[str, object]]:
    """Start a server as a row has it; return its times and the environment."""
    prompts = _prompts(spec, seed)
    begun_s = time.monotonic()
    with ThroughEnsemble(spec.with_model(is_warmed_up=row.is_warmed_up), model=row.entry) as server:
        ready_s = time.monotonic() - begun_s
        found = asyncio.run(_ask_all(server.url, row, prompts, steady=steady))
        return msgspec.structs.replace(found, ready_s=ready_s), environment(triton_http=server.http)


def _prompts(spec: DeploymentSpec, seed: int) -> Iterator[tuple[str, str]]:
    """Yield pairs of prompts: of the first one's length, and of another length."""
    tokenizer = PromptTokenizer.from_spec(spec.model.tokenizer)
    makers = {
        length: PromptMaker(tokenizer, input_tokens=length, seed=1000 * seed + length)
        for length in (_FIRST_LENGTH, *_LENGTHS)
    }
    lengths = random.Random(seed).sample([length for length in _LENGTHS if length != _FIRST_LENGTH], len(_LENGTHS) - 1)
    for length in itertools.cycle(lengths):
        yield makers[_FIRST_LENGTH].prompts(1)[0], makers[length].prompts(1)[0]


async def _ask_all(url: str, row: Row, prompts: Iterator[tuple[str, str]], *, steady: int) -> Start:
    async with AsyncTritonClient(url) as client:
        while not await client.is_ready(model=row.entry):
            await asyncio.sleep(0.01)
        first_ms = await _ttft_ms(client, row, next(prompts)[0])
        # One kind after the other, not by turns: with another length between two, a length would be new again.
        same = [await _ttft_ms(client, row, prompt) for prompt, _ in itertools.islice(prompts, steady)]
        others = [await _ttft_ms(client, row, prompt) for _, prompt in itertools.islice(prompts, steady)]
    return Start(first_ms=first_ms, same_length_ms=statistics.median(same), other_lengths_ms=statistics.median(others))


async def _ttft_ms(client: AsyncTritonClient, row: Row, prompt: str) -> float:
    request = GenerateRequest(
        text_input=prompt, max_tokens=_TOKENS, end_id=-1, stream=row.is_streaming, exclude_input_in_output=True
    )
    await asyncio.sleep(_PAUSE_S)
    start_s = time.perf_counter()
    arrived_s = [time.perf_counter() async for _ in client.generate(request, model=row.entry)]
    return 1000 * (arrived_s[0] - start_s)


def _line(row: Row) -> str:
    told = [
        f"{kind.replace('_', ' ')} {at['median']:.2f} ({at['low']:.2f} to {at['high']:.2f})"
        for kind, at in row.ratios().items()
    ]
    setting = "on " if row.is_warmed_up else "off"
    return f"warm-up {setting} {row.entry}{'' if row.is_streaming else ', not streaming'}: {', '.join(told)}"


if __name__ == "__main__":
    typer.run(main)
