# SPDX-License-Identifier: Apache-2.0
"""Prefill and decode apart: what the hand-over costs a prompt, and what it spares the streams beside the prompt.

`python -m benchmarks.studies.prefill_apart --help`. Two cores, three ways to use them: one engine on both, two engines
with a core each that share the streams, and an engine that prefills beside one that decodes, with a core each. All
sides are up during the whole run and asked in turn. A core is a stand-in for a GPU, and shared memory for the link.
"""

import asyncio
import contextlib
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.peers import model_files, vllm_engine
from benchmarks.peers.vllm_cpu import VENV
from benchmarks.support.disturbed_streams import Disturbance, Scene, disturb_server
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import exact_stream
from clients.exact_prompts import PromptMaker
from clients.streaming import AsyncTritonClient
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.kv_transfer_spec import KvTransferSpec
from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from ensemble_configs.spec.release_spec import PlacementSpec
from serving.text.tokenization import PromptTokenizer
from trireme.base.sample_statistics import percentile

_STREAM_TOKENS = 150  # of each stream, so that it outlasts the prefill
_TOKENS_BEFORE = 30
_LONG_ANSWER = 2  # an answer of one token would be made where the streams are
_KV_BYTES = 2**30

Urls = Sequence[str]  # servers that share the streams; the long prompt goes to the first


def main(
    streams: Annotated[int, typer.Option(help="Streams that run beside the long prompt.", min=2)] = 16,
    lengths: Annotated[
        str, typer.Option(help="Tokens of lone prompts, separated by commas.")
    ] = "64,128,256,512,1024,1900",
    long_tokens: Annotated[int, typer.Option(help="Tokens of the prompt that streams run beside.", min=64)] = 1900,
    rounds: Annotated[int, typer.Option(help="Rounds; each asks all sides once.", min=2)] = 9,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; some ten minutes on two cores. `make peers` installs vLLM and makes the model."""
    if lacks := model_files.lacks(VENV / "bin" / "python", model_files.CHECKPOINT):
        raise typer.BadParameter(lacks)
    sizes = [int(part) for part in lengths.split(",")]
    with contextlib.ExitStack() as stack:
        served = _served(stack)
        where = environment(triton_http=served["together"][0].http)
        urls = {name: [server.url for server in servers] for name, servers in served.items()}
        tokenizer = PromptTokenizer.from_spec(vllm_engine.deployment().model.tokenizer)

        def prompts(num_tokens: int, number: int) -> PromptMaker:
            return PromptMaker(tokenizer, input_tokens=num_tokens, seed=seed + number)

        lone = [_lone(size, urls, prompts(size, number), rounds) for number, size in enumerate(sizes)]
        beside = _beside(urls, prompts(64, 100), prompts(long_tokens, 101), streams, rounds)
    result: dict[str, object] = {
        "benchmark": "prefill_apart",
        "model": f"{model_files.MODEL}: Llama, 12 layers of 768, 32,000 tokens, random weights, bf16, vLLM on the CPU",
        "streams": streams,
        "long_prompt_tokens": long_tokens,
        "rounds": rounds,
        "lone": lone,
        "beside": beside,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result('prefill_apart', result, out)}", err=True)
    for table in (_lone_table(lone), _beside_table(beside)):
        Console().print(table)


def _served(stack: contextlib.ExitStack) -> dict[str, list[ThroughEnsemble]]:
    """Start the servers of each side; the one that prefills is nobody's to ask."""

    def start(
        name: str, cpus: tuple[int, ...], transfer: str | None = None, prefill: str | None = None
    ) -> ThroughEnsemble:
        return stack.enter_context(ThroughEnsemble(_deployment(name, cpus, transfer, prefill)))

    prefill = start("prefill", (0,), "prefill")
    return {
        "together": [start("together", (0, 1))],
        "shared": [start("first", (0,)), start("second", (1,))],
        "apart": [start("decode", (1,), "decode", prefill.url)],
    }


def _deployment(name: str, cpus: tuple[int, ...], role: str | None, prefill_url: str | None) -> DeploymentSpec:
    spec = vllm_engine.deployment()
    assert isinstance(spec.model.engine, VllmEngineSpec)
    engine = spec.model.engine.model_copy(
        update={
            "kv_cache_bytes": _KV_BYTES,
            "num_threads": len(cpus),
            "is_block_reuse": False,  # each prompt is computed anew
            "is_compiled": False,
            "kv_block_tokens": 32,
            "kv_transfer": None if role is None else KvTransferSpec(role=role, host="127.0.0.1"),  # type: ignore[arg-type]
        }
    )
    servers = None if prefill_url is None else PrefillServersSpec(urls=(prefill_url,), min_prompt_tokens=64)
    changed = spec.with_model(engine=engine, placement=PlacementSpec(cpus=cpus), prefill_servers=servers)
    return changed.model_copy(update={"name": name})


def _lone(num_tokens: int, urls: Mapping[str, Urls], made: PromptMaker, rounds: int) -> dict[str, object]:
    """Return the TTFT of lone prompts of one length on each side, and what handing over adds to one core's."""
    found: dict[str, list[float]] = {name: [] for name in urls}
    for index in range(rounds + 1):
        prompt = made.prompts(1)[0]
        ttft_ms = {name: asyncio.run(_ttft_ms(servers[0], prompt)) for name, servers in urls.items()}
        if index:  # the first round warms up
            for name, value in ttft_ms.items():
                found[name].append(value)
    added = [apart - alone for apart, alone in zip(found["apart"], found["shared"], strict=True)]
    return {
        "prompt_tokens": num_tokens,
        "ttft_ms": {name: statistics.median(values) for name, values in found.items()},
        "added_ms": median_with_interval(added),
        "raw_ttft_ms": found,
    }


async def _ttft_ms(url: str, prompt: str) -> float:
    async with AsyncTritonClient(url) as client:
        await client.is_ready()
        begun_s, first_s = time.perf_counter(), 0.0
        async for _ in client.generate(exact_stream(prompt, _LONG_ANSWER)):
            first_s = first_s or time.perf_counter()
    return 1000 * (first_s - begun_s)


def _beside(
    urls: Mapping[str, Urls], short: PromptMaker, long: PromptMaker, streams: int, rounds: int
) -> dict[str, object]:
    """Return the waiting times of streams alone and beside the long prompt, and that prompt's TTFT, on each side."""
    found: dict[str, list[Disturbance]] = {}
    for index in range(rounds + 1):
        for is_beside in (False, True):
            for name, servers in urls.items():
                long_prompt = long.prompts(1)[0] if is_beside else None
                seen = asyncio.run(_disturb(servers, short.prompts(streams), long_prompt))
                if index:
                    found.setdefault(f"{name} {'beside' if is_beside else 'alone'}", []).append(seen)
    p99 = {name: [percentile(run.gaps_ms, 99) for run in runs] for name, runs in found.items()}
    return {
        name: {
            "p99_itl_ms_alone": statistics.median(p99[f"{name} alone"]),
            "p99_itl_ms_beside": statistics.median(p99[f"{name} beside"]),
            "ratio": median_with_interval(
                [one / other for one, other in zip(p99[f"{name} beside"], p99[f"{name} alone"], strict=True)]
            ),
            "ttft_ms": statistics.median([run.ttft_ms or 0.0 for run in found[f"{name} beside"]]),
        }
        for name in urls
    }


async def _disturb(urls: Urls, prompts: list[str], long_prompt: str | None) -> Disturbance:
    """Return the waiting times of streams that some servers share evenly; the long prompt goes to the first server."""
    share = len(prompts) // len(urls)
    scenes = [
        Scene(prompts[number * share : (number + 1) * share], _STREAM_TOKENS, _TOKENS_BEFORE,
              long_prompt if number == 0 else None, _LONG_ANSWER)
        for number in range(len(urls))
    ]  # fmt: skip
    runs = await asyncio.gather(*(disturb_server(url, scene) for url, scene in zip(urls, scenes, strict=True)))
    return Disturbance([gap for run in runs for gap in run.gaps_ms], runs[0].ttft_ms)


def _lone_table(rows: list[dict[str, object]]) -> Table:
    table = Table("prompt tokens", "one core ms", "apart ms", "added ms", title="TTFT of a prompt alone")
    for row in rows:
        ttft, added = row["ttft_ms"], row["added_ms"]
        assert isinstance(ttft, dict)
        assert isinstance(added, dict)
        table.add_row(
            str(row["prompt_tokens"]), f"{ttft['shared']:.0f}", f"{ttft['apart']:.0f}",
            f"{added['median']:.0f} ({added['low']:.0f} to {added['high']:.0f})",
        )  # fmt: skip
    return table


def _beside_table(rows: dict[str, object]) -> Table:
    table = Table("side", "p99 ITL alone ms", "beside ms", "ratio", "TTFT ms", title="Streams beside a long prompt")
    for name, row in rows.items():
        assert isinstance(row, dict)
        table.add_row(
            name, f"{row['p99_itl_ms_alone']:.0f}", f"{row['p99_itl_ms_beside']:.0f}",
            f"{row['ratio']['median']:.2f}", f"{row['ttft_ms']:.0f}",
        )  # fmt: skip
    return table


if __name__ == "__main__":
    typer.run(main)
