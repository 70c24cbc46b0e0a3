# SPDX-License-Identifier: Apache-2.0
"""The cost of the ensemble: tokens/s and TTFT through it over gRPC beside the same engine in-process, as ratios.

`make bench`, or `python -m benchmarks.ensemble_overhead --help`. All sides are up during the whole run and asked in
turn; the order within a round alternates. Where the deployment lets tokens wait for each other, a third side is the
ensemble with one response for each token that the sender is free for: what the delay costs in ITL, and saves.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.support.in_process import in_child_process
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble, with_responses
from benchmarks.support.workload import Ask, Run
from clients.exact_prompts import PromptMaker
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from ensemble_configs.spec.release_spec import ResponseSpec
from serving.text.tokenization import PromptTokenizer

Side = Callable[[Ask], Run]


def main(
    deployment: Annotated[Path, typer.Option(help="Deployment file.")] = DEFAULT_DEPLOYMENT,
    requests: Annotated[str, typer.Option(help="Requests at a time, separated by commas.")] = "1,4,16,64",
    pairs: Annotated[int, typer.Option(help="Rounds of runs for each number of requests.", min=1)] = 9,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Write the result to this file instead.")] = None,
) -> None:
    """Measure and print; takes a few minutes."""
    spec = load_deployment(deployment)
    maker = PromptMaker(PromptTokenizer.from_spec(spec.model.tokenizer), input_tokens=input_tokens, seed=seed)
    with contextlib.ExitStack() as stack:
        ensemble = stack.enter_context(ThroughEnsemble(spec))
        sides: dict[str, Side] = {"ensemble": ensemble.run, "in_process": stack.enter_context(_in_process(deployment))}
        if spec.model.responses.max_chunk_delay_ms:
            prompt = with_responses(spec, ResponseSpec(max_chunk_delay_ms=0), suffix="prompt")
            sides["no_delay"] = stack.enter_context(ThroughEnsemble(prompt)).run
        rows = _measure(sides, maker, [int(part) for part in requests.split(",")], pairs, output_tokens)
        where = environment(triton_http=ensemble.http)
    result: dict[str, object] = {
        "benchmark": "ensemble_overhead",
        "deployment": spec.name,
        "engine": spec.model.engine.model_dump(mode="json", exclude={"dir"}),
        "responses": spec.model.responses.model_dump(mode="json"),
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "pairs": pairs,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result(f'ensemble_overhead_{spec.name}', result, out)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _measure(
    sides: dict[str, Side], maker: PromptMaker, counts: list[int], pairs: int, output_tokens: int
) -> list[dict[str, Any]]:
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=len(counts) * (pairs + 1))
        for count in counts:
            runs: dict[str, list[Run]] = {name: [] for name in sides}
            for pair in range(pairs + 1):
                progress.update(task, description=f"{count} requests, pair {pair} of {pairs}", advance=1)
                ask = Ask(maker.prompts(count), output_tokens)
                for name in sorted(sides, reverse=bool(pair % 2)):
                    run = sides[name](ask)
                    if pair:  # the first pair warms up
                        runs[name].append(run)
            rows.append(_row(count, runs))
    return rows


@contextlib.contextmanager
def _in_process(deployment: Path) -> Iterator[Side]:
    with in_child_process(deployment) as ask_child:

        def run(ask: Ask) -> Run:
            records = ask_child(ask)
            arrivals_s = [[at_ns / 1e9 for at_ns in record.times_ns] for record in records]
            return Run.of(arrivals_s, num_tokens=sum(record.output_tokens for record in records))

        yield run


def _row(count: int, runs: dict[str, list[Run]]) -> dict[str, Any]:
    row: dict[str, Any] = {"requests": count}
    for side, of_side in runs.items():
        row[side] = {
            name: median_with_interval([getattr(run, name) for run in of_side]) for name in Run.__struct_fields__
        }
    alone = runs["in_process"]
    for side in runs.keys() - {"in_process"}:
        pairs = list(zip(runs[side], alone, strict=True))
        row[f"{side}_ratio"] = median_with_interval([ours.tokens_per_s / one.tokens_per_s for ours, one in pairs])
        row[f"{side}_added_ttft_ms"] = median_with_interval([ours.ttft_ms - one.ttft_ms for ours, one in pairs])
    return row


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="through the ensemble over gRPC, beside the same engine in-process; medians, 90 % intervals")
    for column in (
        "requests",
        "side",
        "tokens/s",
        "ratio",
        "TTFT ms",
        "added ms",
        "ITL p50 / p99 ms",
        "tokens/response",
        "client us/response",
    ):
        table.add_column(column, justify="right")
    for row in rows:
        for side in ("ensemble", "no_delay", "in_process"):
            if side in row:
                table.add_row(str(row["requests"]), side, *_cells(row, side))
        table.add_section()
    return table


def _cells(row: dict[str, Any], side: str) -> list[str]:
    median = {name: figures["median"] for name, figures in row[side].items()}
    return [
        f"{median['tokens_per_s']:.0f}",
        _with_interval(row.get(f"{side}_ratio"), 2),
        f"{median['ttft_ms']:.1f}",
        _with_interval(row.get(f"{side}_added_ttft_ms"), 1),
        f"{median['itl_p50_ms']:.1f} / {median['itl_p99_ms']:.1f}",
        f"{median['tokens_per_response']:.2f}",
        f"{median['client_cpu_us']:.0f}",
    ]


def _with_interval(figures: dict[str, float] | None, digits: int) -> str:
    if figures is None:
        return ""
    median, low, high = (f"{figures[part]:.{digits}f}" for part in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


if __name__ == "__main__":
    typer.run(main)
