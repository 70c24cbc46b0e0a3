# SPDX-License-Identifier: Apache-2.0
"""The effect of one tenant's flood, and of endless premium load, on the other tenants of the running server.

`python -m benchmarks.isolation`; five minutes. Targets and capacity as in `benchmarks.overload`. Three tenants ask for
their share of 0.8 times the capacity, and a fourth for its share, then for ten times that. In the third load premium
asks for twice the capacity, and batch, with a deadline, for a tenth. `--figures RECORDS.jsonl.gz` computes the figures
of committed records again.
"""

import asyncio
import heapq
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from benchmarks.overload import ADMISSION, Load, alone, ask, deployment, measured_header, write_records
from benchmarks.overload_figures import Header, Record, p99, read_records
from benchmarks.support.report import result_path
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.load.arrivals import arrivals_s
from clients.streaming import AsyncTritonClient, GenerateRequest
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from serving.engines.seam.scheduling import Priority
from serving.text.tokenization import PromptTokenizer

_FLOOD = "flood"
_TENANTS = ("a", "b", "c", _FLOOD)
_SHARE = 0.8 / len(_TENANTS)  # of the capacity
_DEADLINE_MS = 8_000
_TOLD_WITHIN_MS = 250.0  # after a deadline: a step of the engine, Triton and the way back
_say = Console(stderr=True).print

Due = Iterator[tuple[float, Priority, str]]


def due(seed: int, per_s: float, seconds: float, priority: Priority, tenant: str) -> Due:
    """Return when the requests of one stream are due, and their class and tenant."""
    return ((at, priority, tenant) for at in arrivals_s(random.Random(seed), "poisson", per_s, seconds))


def loads(capacity_per_s: float, seconds: float) -> dict[str, list[Due]]:
    """Return the streams of each load, by its name."""

    def tenants(times: float) -> list[Due]:
        rates = {tenant: _SHARE * capacity_per_s * (times if tenant == _FLOOD else 1) for tenant in _TENANTS}
        return [due(seed, rate, seconds, Priority.STANDARD, name) for seed, (name, rate) in enumerate(rates.items())]

    endless = due(8, 2 * capacity_per_s, seconds, Priority.PREMIUM, "premium")
    batch = due(9, 0.1 * capacity_per_s, seconds, Priority.BATCH, "batch")
    return {"share": tenants(1), "flood": tenants(10), "premium": [endless, batch]}


async def run(url: str, load: Load, streams: list[Due], kind: str) -> list[Record]:
    """Send every request when it is due, and return the records."""
    records, tasks = [], []
    async with AsyncTritonClient(url) as client:
        start_s = time.perf_counter() + 0.2
        for at, priority, tenant in heapq.merge(*streams):
            request, record = load.request(is_told=False)
            request = _labelled(request, priority, tenant)
            record.due_s, record.kind, record.tenant, record.priority = at, kind, tenant, int(priority)
            await asyncio.sleep(max(0.0, start_s + at - time.perf_counter()))
            records.append(record)
            tasks.append(asyncio.create_task(ask(client, request, record, start_s + at)))
        await asyncio.gather(*tasks)
    return records


def _labelled(request: GenerateRequest, priority: Priority, tenant: str) -> GenerateRequest:
    deadline_ms = _DEADLINE_MS if priority is Priority.BATCH else None
    return msgspec.structs.replace(request, priority=int(priority), tenant=tenant, deadline_ms=deadline_ms)


def figures_of(header: Header, records: list[Record]) -> dict[str, object]:
    """Return every figure, from the records alone."""

    def others(kind: str) -> dict[str, float]:
        own = [one for one in records if one.kind == kind and one.tenant != _FLOOD]
        ttfts_ms = [one.first_ms for one in own if one.first_ms is not None]
        return {
            "requests": len(own),
            "answered_share": statistics.fmean(one.end == "done" for one in own),
            "good_share": statistics.fmean(one.is_good(header) for one in own),
            "ttft_p50_ms": statistics.median(ttfts_ms),
            "ttft_p99_ms": p99(ttfts_ms),
        }

    batch = [one for one in records if one.kind == "premium" and one.priority == Priority.BATCH]
    share, flood = others("share"), others("flood")
    return {
        "benchmark": "isolation",
        **msgspec.to_builtins(header),
        "others beside a share": share,
        "others beside a flood": flood,
        "others_ttft_p99_flood_over_share": flood["ttft_p99_ms"] / share["ttft_p99_ms"],
        "batch under endless premium": {
            "requests": len(batch),
            "deadline_ms": _DEADLINE_MS,
            "ends": {end: sum(one.end == end for one in batch) for end in sorted({one.end for one in batch})},
            "latest_end_ms": max(one.end_ms for one in batch),
            "later_than_deadline": sum(one.end_ms > _DEADLINE_MS + _TOLD_WITHIN_MS for one in batch),
        },
    }


def main(
    seconds: Annotated[float, typer.Option(min=20, help="Seconds of each load.")] = 60.0,
    seed: Annotated[int, typer.Option(help="Seed of lengths.")] = 1,
    figures: Annotated[Path | None, typer.Option(help="Records to compute the figures of, and nothing else.")] = None,
) -> None:
    """Measure, write the records, and print what follows from them."""
    path = figures
    if path is None:
        load = Load(PromptTokenizer.from_spec(load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer), seed)
        header = measured_header(load, seed)
        measured: list[Record] = []
        for kind, streams in loads(header.capacity_per_s, seconds).items():
            _say(f"{kind}: {seconds:.0f} s")
            with ThroughEnsemble(deployment(admission=ADMISSION, slo=header.slo())) as server:
                asyncio.run(alone(server.url, load, 5))
                measured += asyncio.run(run(server.url, load, streams, kind))
        path = result_path("isolation", str(header.environment["commit"])).with_suffix(".jsonl.gz")
        write_records(path, header, measured)
    header, records = read_records(path)
    found = figures_of(header, records)
    text = msgspec.json.format(msgspec.json.encode(found), indent=1)
    (path.parent / f"{path.name.removesuffix('.jsonl.gz')}.json").write_bytes(text + b"\n")
    print({name: value for name, value in found.items() if name not in Header.__struct_fields__})


if __name__ == "__main__":
    typer.run(main)
