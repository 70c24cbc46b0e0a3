# SPDX-License-Identifier: Apache-2.0
"""In-flight against static batching: one engine, the same requests of mixed lengths, some number at a time.

`python -m benchmarks.static_batching --help`; a few minutes. Static: a batch of requests begins together, and the next
one when its last request is done, which is when all their answers are given. In flight: each seat takes the next
request as soon as its own is done. Nothing else differs: engine, process, threads, prompts and lengths are the same, by
turns.
"""

import itertools
import random
import statistics
import time
from collections import deque
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.support.report import environment, median_with_interval, write_result
from clients.load.load_plan import draw
from clients.load.workload_spec import Lengths
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, GenerationRequest, SamplingParams
from trireme.base.sample_statistics import percentile

OSL = Lengths(mean=64, stddev=48, distribution="lognormal", min=4, max=256)
_PROMPT_TOKENS = 32
_WAVES = 8  # of requests, so many as run at a time
_VOCABULARY = range(300, 3000)  # ids of ordinary tokens


class Asked(msgspec.Struct, frozen=True):
    """A request: prompt and answer length."""

    input_ids: list[int]
    output_tokens: int


class Side(msgspec.Struct, frozen=True):
    """The result of one way of batching with every request."""

    tokens_per_s: float
    e2e_ms: list[float]  # of each request, from its seat's being free to its answer
    mean_batch: float  # sequences of a step


def requests(count: int, rng: random.Random) -> list[Asked]:
    """Return requests; no prompt comes twice, so that no cache helps."""
    return [Asked(rng.choices(_VOCABULARY, k=_PROMPT_TOKENS), draw(OSL, rng)) for _ in range(count)]


class Bench:
    """An engine that is asked in both ways."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._keys = itertools.count(1)

    def in_flight(self, asked: list[Asked], size: int) -> Side:
        """Run requests on seats, each of which goes on by itself."""
        waiting = deque(asked)
        begun_s: dict[int, float] = {}
        start_s = time.perf_counter()
        e2e_ms: list[float] = []
        num_steps = num_sequences = 0

        def fill() -> None:
            while waiting and len(begun_s) < size:
                begun_s[self._add(waiting.popleft())] = time.perf_counter()

        fill()
        while begun_s:
            num_steps, num_sequences = num_steps + 1, num_sequences + len(begun_s)
            e2e_ms += [1000 * (time.perf_counter() - begun_s.pop(key)) for key in self._step()]
            fill()
        return _side(asked, start_s, e2e_ms, num_sequences / num_steps)

    def static(self, asked: list[Asked], size: int) -> Side:
        """Run requests in batches; those of a batch begin together, and are answered together."""
        start_s = time.perf_counter()
        e2e_ms: list[float] = []
        num_steps = num_sequences = 0
        for first in range(0, len(asked), size):
            batch_s = time.perf_counter()
            running = {self._add(one) for one in asked[first : first + size]}
            count = len(running)
            while running:
                num_steps, num_sequences = num_steps + 1, num_sequences + len(running)
                running.difference_update(self._step())
            e2e_ms += [1000 * (time.perf_counter() - batch_s)] * count
        return _side(asked, start_s, e2e_ms, num_sequences / num_steps)

    def _add(self, asked: Asked) -> int:
        key = next(self._keys)
        count = asked.output_tokens
        sampling = SamplingParams(max_tokens=count, min_tokens=count, end_id=-1)
        self._engine.add(GenerationRequest(key=key, input_ids=asked.input_ids, sampling=sampling))
        return key

    def _step(self) -> list[int]:
        """Step, and return the keys of what is done."""
        return [chunk.key for chunk in self._engine.step() if chunk.finish_reason is not None]


def _side(asked: list[Asked], start_s: float, e2e_ms: list[float], mean_batch: float) -> Side:
    num_tokens = sum(one.output_tokens for one in asked)
    return Side(num_tokens / (time.perf_counter() - start_s), e2e_ms, mean_batch)


def measure(bench: Bench, size: int, pairs: int, rng: random.Random, advance: Any) -> dict[str, Any]:
    """Measure both ways by turns, on the same requests."""
    found: dict[str, list[Side]] = {"in_flight": [], "static": []}
    for pair in range(pairs + 1):
        asked = requests(_WAVES * size, rng)
        for name in sorted(found, reverse=bool(pair % 2)):
            side = getattr(bench, name)(asked, size)
            if pair:  # the first pair warms up
                found[name].append(side)
        advance()

    def ratios(figure: Any) -> dict[str, float]:
        pairs_of = zip(found["in_flight"], found["static"], strict=True)
        return median_with_interval([figure(one) / figure(other) for one, other in pairs_of])

    return {
        "requests": size,
        "tokens_per_s": {
            name: median_with_interval([side.tokens_per_s for side in sides]) for name, sides in found.items()
        },
        "tokens_per_s_ratio": ratios(lambda side: side.tokens_per_s),
        "e2e_p50_ratio": ratios(lambda side: statistics.median(side.e2e_ms)),
        "e2e_p99_ratio": ratios(lambda side: percentile(side.e2e_ms, 99)),
        "mean_batch": {name: statistics.median(side.mean_batch for side in sides) for name, sides in found.items()},
        "e2e_ms": {
            name: {
                str(percent): percentile([value for side in sides for value in side.e2e_ms], percent)
                for percent in (50, 99)
            }
            for name, sides in found.items()
        },
    }


def main(
    deployment: Annotated[Path, typer.Option(help="Deployment file of the engine that is asked.")] = DEFAULT_DEPLOYMENT,
    sizes: Annotated[str, typer.Option(help="Requests at a time, separated by commas.")] = "1,4,16,64",
    pairs: Annotated[int, typer.Option(help="Pairs of runs for each number of requests.", min=1)] = 9,
    seed: Annotated[int, typer.Option(help="Seed of prompts and lengths.")] = 1,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes a few minutes."""
    spec = load_deployment(deployment)
    counts = [int(part) for part in sizes.split(",")]
    bench, rng = Bench(create_engine(spec.model.engine)), random.Random(seed)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(counts) * (pairs + 1))
        rows = [measure(bench, size, pairs, rng, lambda: progress.advance(task)) for size in counts]
    result: dict[str, object] = {
        "benchmark": "static_batching",
        "deployment": spec.name,
        "engine": spec.model.engine.model_dump(mode="json", exclude={"dir"}),
        "input_tokens": _PROMPT_TOKENS,
        "output_tokens": OSL.model_dump(mode="json"),
        "pairs": pairs,
        "rows": rows,
        "environment": environment(),
    }
    Console().print(_table(rows))
    name = f"static_batching_{spec.name}"
    if is_kept:
        path = write_result(name, result, out)
        _draw(rows, path.with_suffix(".png"))
        typer.echo(f"written to {path}", err=True)


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="in-flight over static batching, the same requests: ratios and their 90 % intervals")
    for column in ("requests", "tokens/s", "E2E p50", "E2E p99", "sequences of a step"):
        table.add_column(column, justify="right")
    for row in rows:
        ratios = [row[f"{name}_ratio"] for name in ("tokens_per_s", "e2e_p50", "e2e_p99")]
        cells = [f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in ratios]
        batch = row["mean_batch"]
        table.add_row(str(row["requests"]), *cells, f"{batch['in_flight']:.1f}, {batch['static']:.1f}")
    return table


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    figure = Figure(figsize=(9.6, 3.4), layout="constrained")
    speed, wait = figure.subplots(1, 2)
    xs = range(len(rows))
    for name, label, style in (("in_flight", "in-flight", "o-"), ("static", "static", "s--")):
        speeds = [row["tokens_per_s"][name] for row in rows]
        errors = [
            [one["median"] - one["low"] for one in speeds],
            [one["high"] - one["median"] for one in speeds],
        ]
        medians = [one["median"] for one in speeds]
        speed.errorbar(xs, medians, yerr=errors, fmt=style, color="black", fillstyle="none", capsize=3, label=label)
        for percent, marker in (("50", style), ("99", f"{style[0]}:")):
            ys = [row["e2e_ms"][name][percent] / 1000 for row in rows]
            wait.plot(xs, ys, marker, color="black" if name == "in_flight" else "0.5", label=f"{label}, p{percent}")
    for axis, title in ((speed, "output tokens/s"), (wait, "end to end, s")):
        axis.set_title(title)
        axis.set_xticks(xs, [str(row["requests"]) for row in rows])
        axis.set_xlabel("requests at a time")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    typer.run(main)
