# SPDX-License-Identifier: Apache-2.0
"""What the ensemble costs: tokens/s and TTFT through it over gRPC beside the same engine in-process, as ratios.

`make bench`, or `python -m benchmarks.ensemble_overhead --help`. Both sides are up during the whole run and asked in
turn; the order within a pair alternates.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.report import environment, median_with_interval, write_result
from benchmarks.through_ensemble import ThroughEnsemble
from benchmarks.workload import Ask, PromptMaker, Run
from ensemble_configs.deployment import load_deployment
from ensemble_configs.repository import DEFAULT_DEPLOYMENT
from serving.tokenization import PromptTokenizer

Side = Callable[[Ask], Run]


def main(
    deployment: Annotated[Path, typer.Option(help="Deployment file.")] = DEFAULT_DEPLOYMENT,
    requests: Annotated[str, typer.Option(help="Requests at a time, separated by commas.")] = "1,4,16,64",
    pairs: Annotated[int, typer.Option(help="Pairs of runs for each number of requests.", min=1)] = 9,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=1)] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write it to benchmarks/results.")] = True,
) -> None:
    """Measure and print; takes a few minutes."""
    spec = load_deployment(deployment)
    maker = PromptMaker(PromptTokenizer.from_spec(spec.tokenizer), input_tokens=input_tokens, seed=seed)
    command = [sys.executable, "-m", "benchmarks.in_process", str(deployment)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as child, ThroughEnsemble(deployment) as ensemble:
        sides = {"ensemble": ensemble.run, "in_process": lambda ask: _ask_child(child, ask)}
        rows = _measure(sides, maker, [int(part) for part in requests.split(",")], pairs, output_tokens)
        where = environment(triton_http=ensemble.http)
        assert child.stdin is not None
        child.stdin.close()
    result: dict[str, object] = {
        "benchmark": "ensemble_overhead",
        "deployment": spec.name,
        "engine": spec.engine.model_dump(mode="json", exclude={"dir"}),
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "pairs": pairs,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result(f'ensemble_overhead_{spec.name}', result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _measure(
    sides: dict[str, Side], maker: PromptMaker, counts: list[int], pairs: int, output_tokens: int
) -> list[dict[str, object]]:
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


def _ask_child(child: subprocess.Popen[bytes], ask: Ask) -> Run:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(msgspec.json.encode(ask) + b"\n")
    child.stdin.flush()
    return msgspec.json.decode(child.stdout.readline(), type=Run)


def _row(count: int, runs: dict[str, list[Run]]) -> dict[str, object]:
    matched = list(zip(runs["ensemble"], runs["in_process"], strict=True))
    return {
        "requests": count,
        "ensemble_tokens_per_s": median_with_interval([run.tokens_per_s for run in runs["ensemble"]]),
        "in_process_tokens_per_s": median_with_interval([run.tokens_per_s for run in runs["in_process"]]),
        "throughput_ratio": median_with_interval([ours.tokens_per_s / alone.tokens_per_s for ours, alone in matched]),
        "ensemble_ttft_ms": median_with_interval([run.ttft_ms for run in runs["ensemble"]]),
        "in_process_ttft_ms": median_with_interval([run.ttft_ms for run in runs["in_process"]]),
        "added_ttft_ms": median_with_interval([ours.ttft_ms - alone.ttft_ms for ours, alone in matched]),
    }


def _table(rows: list[dict[str, object]]) -> Table:
    table = Table(title="through the ensemble over gRPC, beside the same engine in-process")
    for column in ("requests", "tokens/s", "in-process", "ratio (90 %)", "TTFT ms", "in-process", "added ms (90 %)"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            str(row["requests"]),
            f"{_value(row, 'ensemble_tokens_per_s'):.0f}",
            f"{_value(row, 'in_process_tokens_per_s'):.0f}",
            _with_interval(row, "throughput_ratio", 2),
            f"{_value(row, 'ensemble_ttft_ms'):.1f}",
            f"{_value(row, 'in_process_ttft_ms'):.1f}",
            _with_interval(row, "added_ttft_ms", 1),
        )
    return table


def _value(row: dict[str, object], name: str, part: str = "median") -> float:
    figures = row[name]
    assert isinstance(figures, dict)
    return float(figures[part])


def _with_interval(row: dict[str, object], name: str, digits: int) -> str:
    median, low, high = (f"{_value(row, name, part):.{digits}f}" for part in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


if __name__ == "__main__":
    typer.run(main)
