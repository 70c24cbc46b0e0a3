# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine core behind Triton, beside vLLM's own server, and beside the core alone.

`python -m benchmarks.studies.vllm_engine --help`. The same model, precision and prompts; each side runs alone, one
after the other in every round. Ours is asked over gRPC by the contract, vLLM's server by OpenAI's `/v1/completions`,
both streamed.
"""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

from benchmarks.peers import model_files
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import Plan, measure
from benchmarks.peers.shown import described, rows, table, wide_console
from benchmarks.peers.vllm_beside import beside
from benchmarks.peers.vllm_cpu import VllmCpu
from benchmarks.peers.vllm_engine import NAME, InProcessVllm, VllmEnsemble
from benchmarks.support.report import environment, write_result
from trireme.base.errors import ServingError

_NAME = "vllm_engine"
_TITLE = "vLLM's core behind Triton, beside its own server; medians over the rounds, ratios within a round"


def main(
    users: Annotated[str, typer.Option(help="Users of the closed loop, separated by commas.")] = "1,4,16,64",
    rounds: Annotated[int, typer.Option(help="Rounds; each starts, measures and stops every side.", min=1)] = 5,
    requests: Annotated[int, typer.Option(help="Requests of a load; 8 for each user where that is more.", min=1)] = 32,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    cancels: Annotated[int, typer.Option(help="Clients that leave each of the two servers.", min=2)] = 300,
    texts: Annotated[
        int, typer.Option(help="Prompts of each script, asked with and without a stop string.", min=1)
    ] = 8,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Measure and print; some 4 minutes a round on two cores. `make peers` installs vLLM and makes the model.

    \b
    Examples:
      python -m benchmarks.studies.vllm_engine
      python -m benchmarks.studies.vllm_engine --users 16 --rounds 3 --no-keep
    """
    peers: list[Peer] = [VllmEnsemble(), InProcessVllm(), VllmCpu(beside=NAME)]
    if missing := [f"{peer.name}: {lacks}" for peer in peers if (lacks := model_files.lacks(*peer.needs))]:
        raise typer.BadParameter("; ".join(missing))
    plan = Plan(
        users=tuple(int(part) for part in users.split(",")),
        num_rounds=rounds,
        num_requests=requests,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        tokenizer_dir=str(model_files.CHECKPOINT),
        seed=seed,
    )
    result: dict[str, object] = {
        "benchmark": _NAME,
        "model": f"{model_files.MODEL}: Llama, 12 layers of 768, 32,000 tokens, random weights",
        "plan": {**msgspec.to_builtins(plan), "tokenizer_dir": model_files.MODEL},
        "environment": environment(),
    }
    try:
        result |= beside(cancels, texts, seed=seed, tell=lambda text: typer.echo(text, err=True))
        for number, sides in enumerate(measure(peers, plan, tell=lambda text: typer.echo(text, err=True)), start=1):
            found = rows(sides, peers)
            result |= {"rounds_done": number, "sides": described(sides), "rows": found}
            if is_kept:
                typer.echo(f"written to {write_result(_NAME, result, out)}", err=True)
    except ServingError as exc:
        typer.echo(f"{_NAME}: {exc.message}", err=True)
        raise typer.Exit(1) from exc
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        console = wide_console()
        for name in ("cancels", "texts"):
            console.print(_table(name, result[name]))
        console.print(table(found, _TITLE))


def _table(title: str, rows: Any) -> Table:
    """Return the rows of one kind as a table with a column for each field."""
    shown = Table(*rows[0], title=title)
    for row in rows:
        shown.add_row(*(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row.values()))
    return shown


if __name__ == "__main__":
    typer.run(main)
