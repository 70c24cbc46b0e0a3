# SPDX-License-Identifier: Apache-2.0
"""The effect of `trireme batch run` on interactive requests beside it, and the idle capacity that it fills.

`python -m benchmarks.studies.batch_beside_interactive --help`; a quarter of an hour. Interactive requests come open
loop, Poisson, at half of the closed loop's rate of the same run. Pairs of segments on one server, in random order:
alone, and beside a batch job, which is killed at its segment's end and resumed in the next; on servers that let the
batch class fill different shares. `--figures FILE` computes the figures
of a committed file again.
"""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from rich.console import Console

from benchmarks.overload import ENGINE, Load, ask, deployment
from benchmarks.overload_figures import Record, p99
from benchmarks.support.report import environment, interval_90, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.load.arrivals import arrivals_s
from clients.streaming import AsyncTritonClient
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.admission_spec import AdmissionSpec
from ensemble_configs.spec.deployment import load_deployment
from serving.engines.seam.scheduling import Priority
from serving.text.tokenization import PromptTokenizer
from trireme.base.sample_statistics import Sample, block_bootstrap

WARM_UP_S, MEASURED_S = 8.0, 20.0
INTERACTIVE_SHARE = 0.5  # of the closed loop's rate
_BATCH_LINES = 100_000  # more than are ever answered
_RESAMPLES = 2_000
_say = Console(stderr=True).print


class Segment(msgspec.Struct, kw_only=True):
    """A stretch of interactive load, without its warm-up."""

    pair: int
    is_beside: bool  # a batch job runs
    ttft_ms: list[float]  # of every interactive request, from when it was due
    tpot_ms: list[float]
    num_failed: int
    interactive_tokens_per_s: float  # made
    batch_tokens_per_s: float


def figures_of(segments: Sequence[Segment], capacity_tokens_per_s: float) -> dict[str, object]:
    """Return the ratios, with 90 % bootstrap intervals over the pairs (percentile method, seeded)."""
    pairs = [
        [next(one for one in segments if (one.pair, one.is_beside) == (pair, is_beside)) for is_beside in (False, True)]
        for pair in sorted({one.pair for one in segments})
    ]
    alone, beside = ([pair[is_beside].ttft_ms for pair in pairs] for is_beside in (False, True))
    all_alone, all_beside = (list(chain.from_iterable(side)) for side in (alone, beside))

    def with_interval(figure: Callable[[Sample], float]) -> dict[str, float]:
        # Without a seed of its own each side is of the same pairs.
        over, under = (block_bootstrap(figure, side, num_resamples=_RESAMPLES) for side in (beside, alone))
        return {"value": figure(all_beside) / figure(all_alone), **interval_90(over / under)}

    p99_ratios = [p99(over) / p99(under) for over, under in zip(beside, alone, strict=True)]
    alone_tokens = statistics.fmean(pair[0].interactive_tokens_per_s for pair in pairs)
    beside_tokens = statistics.fmean(pair[1].interactive_tokens_per_s + pair[1].batch_tokens_per_s for pair in pairs)
    idle = capacity_tokens_per_s - alone_tokens
    return {
        "interactive_ttft_p99_ratio": with_interval(p99),
        "interactive_ttft_p50_ratio": with_interval(lambda values: float(np.median(values))),
        # One number for each pair: a machine that was busy for a while spoils a pair and not the median.
        "p99_ratio_of_pairs": p99_ratios,
        "p99_ratio_median_of_pairs": statistics.median(p99_ratios),
        "ttft_p99_ms": {"alone": p99(all_alone), "beside": p99(all_beside)},
        "ttft_p50_ms": {"alone": statistics.median(all_alone), "beside": statistics.median(all_beside)},
        "tpot_p50_ms": {
            name: statistics.median(value for pair in pairs for value in pair[is_beside].tpot_ms)
            for name, is_beside in (("alone", False), ("beside", True))
        },
        "requests": {"alone": len(all_alone), "beside": len(all_beside)},
        "failed": {
            name: sum(pair[is_beside].num_failed for pair in pairs) for name, is_beside in (("alone", 0), ("beside", 1))
        },
        "capacity_tokens_per_s": capacity_tokens_per_s,
        "tokens_per_s": {"alone": alone_tokens, "beside": beside_tokens},
        "total_over_capacity": beside_tokens / capacity_tokens_per_s,
        "idle_capacity_filled": (beside_tokens - alone_tokens) / idle,
    }


async def interactive(url: str, load: Load, due: list[float]) -> list[Record]:
    """Send every request of the standard class when it is due, and return the records."""
    records, tasks = [], []
    async with AsyncTritonClient(url) as client:
        start_s = time.perf_counter()
        for at in due:
            request, record = load.request(is_told=True)
            request = msgspec.structs.replace(request, priority=int(Priority.STANDARD), tenant="people")
            record.due_s = at
            await asyncio.sleep(max(0.0, start_s + at - time.perf_counter()))
            records.append(record)
            tasks.append(asyncio.create_task(ask(client, request, record, start_s + at)))
        await asyncio.gather(*tasks)
    return records


async def capacity(url: str, load: Load, *, num_clients: int, seconds: float) -> tuple[float, float]:
    """Return requests and tokens per second of clients that each wait for their answer.

    The first quarter of the time does not count.
    """
    ends: list[tuple[float, int]] = []
    start_s = time.perf_counter()

    async def one(client: AsyncTritonClient) -> None:
        while time.perf_counter() < start_s + seconds:
            request, record = load.request(is_told=True)
            request = msgspec.structs.replace(request, priority=int(Priority.PREMIUM))  # who may fill all of it
            await ask(client, request, record, time.perf_counter())
            ends.append((time.perf_counter() - start_s, record.num_tokens))

    async with AsyncTritonClient(url) as client:
        await asyncio.gather(*(one(client) for _ in range(num_clients)))
    counted = [tokens for at, tokens in ends if seconds / 4 <= at < seconds]
    return len(counted) / (0.75 * seconds), sum(counted) / (0.75 * seconds)


def write_lines(path: Path, load: Load) -> None:
    """Write batch lines of the same lengths as the load's."""
    with path.open("wb") as file:
        for number in range(_BATCH_LINES):
            request, _ = load.request(is_told=False)
            body = {"prompt": request.text_input, "max_tokens": request.max_tokens, "temperature": 0}
            line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body}
            file.write(msgspec.json.encode(line) + b"\n")


def tokens_in(out: Path, begin: int, end: int) -> int:
    """Return the tokens of the results in a part of the file."""
    with out.open("rb") as file:
        file.seek(begin)
        lines = file.read(end - begin).splitlines()
    results = [msgspec.json.decode(line) for line in lines]
    if failed := [result["error"] for result in results if result["error"]]:
        raise SystemExit(f"a batch line failed: {failed[0]}")
    return sum(result["response"]["body"]["usage"]["completion_tokens"] for result in results)


async def segment(
    server: ThroughEnsemble, load: Load, *, pair: int, is_beside: bool, per_s: float, folder: Path
) -> Segment:
    """Measure interactive load, with a batch job beside it or without."""
    due = list(arrivals_s(load.rng, "poisson", per_s, WARM_UP_S + MEASURED_S))
    out, command = folder / "out.jsonl", [sys.executable, "-m", "trireme", "batch", "run", str(folder / "in.jsonl")]
    job = None
    if is_beside:
        job = subprocess.Popen([*command, "--out", str(out), "--url", server.url, "--tenant", "offline"])
    marks: list[int] = []

    async def mark() -> None:
        for wait_s in (WARM_UP_S, MEASURED_S):
            await asyncio.sleep(wait_s)
            marks.append(out.stat().st_size if is_beside else 0)
        if job is not None:
            job.kill()
            job.wait()

    marking = asyncio.create_task(mark())
    records = [record for record in await interactive(server.url, load, due) if record.due_s >= WARM_UP_S]
    await marking
    return Segment(
        pair=pair,
        is_beside=is_beside,
        ttft_ms=[round(record.first_ms, 1) for record in records if record.first_ms is not None],
        tpot_ms=[round(record.tpot_ms, 2) for record in records if record.num_tokens > 1],
        num_failed=sum(record.end != "done" for record in records),
        interactive_tokens_per_s=sum(record.num_tokens for record in records) / MEASURED_S,
        batch_tokens_per_s=tokens_in(out, *marks) / MEASURED_S if is_beside else 0.0,
    )


def measure(share: float, pairs: int, load: Load, per_s: float | None) -> dict[str, object]:
    """Measure every pair on a server whose batch class may fill `share` of it.

    Args:
        share: of the budget.
        pairs: segments alone and beside a job.
        load: the interactive requests.
        per_s: rate of interactive requests; None: half of the capacity.
    """
    shares = {"premium": 1.0, "standard": 1.0, "batch": share}
    admission = AdmissionSpec.model_validate({"budget": {"shares": shares}})
    segments = []
    with tempfile.TemporaryDirectory() as name, ThroughEnsemble(deployment(admission=admission)) as server:
        folder = Path(name)
        write_lines(folder / "in.jsonl", load)
        requests_per_s, tokens_per_s = asyncio.run(
            capacity(server.url, load, num_clients=2 * ENGINE.max_num_seqs, seconds=30.0)
        )
        where = environment(triton_http=server.http)  # not sooner: gRPC answers a moment before HTTP does
        per_s = per_s or INTERACTIVE_SHARE * requests_per_s
        _say(f"batch share {share:g}: capacity {requests_per_s:.1f} requests/s, {tokens_per_s:.0f} tokens/s")
        for pair in range(pairs):
            for is_beside in load.rng.sample([False, True], 2):
                one = segment(server, load, pair=pair, is_beside=is_beside, per_s=per_s, folder=folder)
                segments.append(found := asyncio.run(one))
                kind = "beside" if is_beside else "alone"
                worst_ms, speed = p99(found.ttft_ms), found.batch_tokens_per_s
                _say(f"pair {pair} {kind}: p99 {worst_ms:.1f} ms, batch {speed:.0f} tokens/s")
        num_results = len(_ids(folder / "out.jsonl"))
    _say(figures := figures_of(segments, tokens_per_s))
    return {
        "batch_share": share,
        "interactive_per_s": per_s,
        "num_kills": pairs,
        "num_results": num_results,  # of lines, each there once
        "environment": where,
        "figures": figures,
        "segments": msgspec.to_builtins(segments),
    }


def _ids(out: Path) -> list[str]:
    """Return the ids of whole lines; an id that is there twice ends the measurement."""
    ids = [msgspec.json.decode(line)["id"] for line in out.read_bytes().split(b"\n")[:-1]]
    if len(set(ids)) < len(ids):
        raise SystemExit("a batch line has two results")
    return ids


def main(
    shares: Annotated[str, typer.Option(help="Shares of the batch class, each with its pairs.")] = "0.75:8,0.95:3",
    seed: Annotated[int, typer.Option(help="Seed of arrivals, lengths and order.")] = 1,
    figures: Annotated[Path | None, typer.Option(help="Only compute the figures of this file again.")] = None,
) -> None:
    """Measure, write the segments and figures, and print the figures."""
    if figures is not None:
        for run in msgspec.json.decode(figures.read_bytes())["runs"]:
            segments = msgspec.convert(run["segments"], list[Segment])
            _say(run["batch_share"], figures_of(segments, run["figures"]["capacity_tokens_per_s"]))
        return
    load = Load(PromptTokenizer.from_spec(load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer), seed)
    runs: list[dict[str, object]] = []
    for one in shares.split(","):
        share, _, pairs = one.partition(":")
        per_s = runs[0]["interactive_per_s"] if runs else None
        assert per_s is None or isinstance(per_s, float)
        runs.append(measure(float(share), int(pairs), load, per_s))
        write_result(
            "batch_beside_interactive",
            {
                "benchmark": "batch_beside_interactive",
                "engine": ENGINE.model_dump(mode="json"),
                "seed": seed,
                "runs": runs,
            },
        )


if __name__ == "__main__":
    typer.run(main)
