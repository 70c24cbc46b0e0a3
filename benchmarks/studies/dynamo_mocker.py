# SPDX-License-Identifier: Apache-2.0
"""Everything that is not the engine: our ensemble beside Dynamo's frontend, both with a simulated engine.

`python -m benchmarks.studies.dynamo_mocker --help`. Both engines take the same fixed time for a step, so what differs
is the way of a request and of its tokens: HTTP and SSE, or gRPC; tokenizer and detokenizer; queues between processes.
Both sides are asked by the same client on the same cores, and count tokens themselves; Dynamo puts no special token in
front of a prompt, so ours does not either here.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from benchmarks.peers import model_files
from benchmarks.peers.dynamo import DynamoMocker
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import Plan, measure
from benchmarks.peers.shown import cells, described, draw, rows, wide_console
from benchmarks.peers.simulated import SimulatedEnsemble
from benchmarks.support.report import environment, write_result
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from trireme.base.errors import ServingError

_NAME = "dynamo_mocker"
_COLUMNS = ("step ms", "users", "side", "tokens/s", "TTFT p50 / p99 ms", "TPOT p50 ms", "client")


def main(
    steps_ms: Annotated[str, typer.Option(help="Times of an engine step, separated by commas.")] = "10,1",
    users: Annotated[str, typer.Option(help="Users of the closed loop, separated by commas.")] = "1,16,64,256",
    rounds: Annotated[int, typer.Option(help="Rounds; each starts, measures and stops every side.", min=1)] = 7,
    requests: Annotated[int, typer.Option(help="Requests of a load; 8 for each user where that is more.", min=1)] = 32,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    processes: Annotated[int, typer.Option(help="Processes of the client.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Result file; a picture of that name is put beside it.")] = None,
) -> None:
    """Measure and print; about 4 minutes a round on two cores. `make peers` installs Dynamo.

    \b
    Examples:
      python -m benchmarks.studies.dynamo_mocker
      python -m benchmarks.studies.dynamo_mocker --steps-ms 10 --users 64 --rounds 3 --no-keep
    """
    tokenizer_dir = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.dir
    plan = Plan(
        users=tuple(int(part) for part in users.split(",")),
        num_rounds=rounds,
        num_requests=requests,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        tokenizer_dir=str(tokenizer_dir),
        seed=seed,
        num_processes=processes,
        adds_special_tokens=False,
    )
    found: list[dict[str, Any]] = []
    sides: list[dict[str, str]] = []
    where = environment()
    for step_ms in map(float, steps_ms.split(",")):
        peers = _sides(tokenizer_dir, step_ms)
        if missing := [f"{peer.name}: {lacks}" for peer in peers if (lacks := model_files.lacks(*peer.needs))]:
            raise typer.BadParameter("; ".join(missing), param_hint="Dynamo")
        try:
            typer.echo(f"{step_ms:g} ms a step", err=True)
            [*_, measured] = measure(peers, plan, tell=lambda text: typer.echo(text, err=True))
        except ServingError as exc:
            typer.echo(f"dynamo_mocker: {exc.message}", err=True)
            raise typer.Exit(1) from exc
        found += [{"step_ms": step_ms, **row} for row in rows(measured, peers)]
        sides += [{"step_ms": f"{step_ms:g}", **side} for side in described(measured)]
    result: dict[str, object] = {
        "benchmark": _NAME,
        "plan": {**msgspec.to_builtins(plan), "tokenizer_dir": "the demo model's"},
        "sides": sides,
        "rows": found,
        "environment": where,
    }
    if is_kept:
        path = write_result(_NAME, result, out)
        typer.echo(f"written to {path}", err=True)
        _draw(found, path.with_suffix(".png"))
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        wide_console().print(_table(found))


def _sides(tokenizer_dir: Path, step_ms: float) -> list[Peer]:
    ours = SimulatedEnsemble(tokenizer_dir, step_ms=step_ms, has_delay=True)
    no_delay = SimulatedEnsemble(tokenizer_dir, step_ms=step_ms, has_delay=False, beside=ours.name)
    return [ours, DynamoMocker(tokenizer_dir, step_ms=step_ms, beside=ours.name), no_delay]


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(title="simulated engines, medians over the rounds; ratios of ours, with its delay, within a round")
    for column in (*_COLUMNS, "ours over it: tokens/s", "TTFT p50", "TPOT p50", "CPU s / 1000 tokens", "tokens/chunk"):
        table.add_column(column, justify="left" if column == "side" else "right")
    for row in sorted(found, key=lambda row: (row["step_ms"], row["users"])):
        cpu, chunk = row["server_cpu_s_per_1000_tokens"], row["tokens_per_chunk"]
        table.add_row(f"{row['step_ms']:g}", *cells(row), f"{cpu['median']:.3f}", f"{chunk['median']:.2f}")
    return table


def _draw(found: list[dict[str, Any]], path: Path) -> None:
    """Draw a column for each time of a step."""
    steps = sorted({row["step_ms"] for row in found})
    named = [{**row, "side": f"{row['side']}, {row['step_ms']:g} ms"} for row in found]
    panels = {
        f"{step:g} ms a step": list(dict.fromkeys(row["side"] for row in named if row["step_ms"] == step))
        for step in steps
    }
    measures = {
        "tokens_per_s": "output tokens/s",
        "ttft_p50_ms": "TTFT p50, ms",
        "server_cpu_s_per_1000_tokens": "server's CPU s / 1000 tokens",
    }
    draw(named, panels, measures, path)


if __name__ == "__main__":
    typer.run(main)
