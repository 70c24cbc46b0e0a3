# SPDX-License-Identifier: Apache-2.0
"""`python -m benchmarks.peers`: our ensemble beside other servers of the same model, under the same load."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from benchmarks.peers import model_files
from benchmarks.peers.ensemble import Ensemble
from benchmarks.peers.in_process import InProcessOpenVino
from benchmarks.peers.llama_server import LlamaServer
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import Plan, measure
from benchmarks.peers.shown import described, draw, rows, table, wide_console
from benchmarks.peers.vllm_cpu import VllmCpu
from benchmarks.support.report import environment, write_result
from trireme.base.errors import ServingError

_OURS: tuple[Peer, ...] = (Ensemble(8), Ensemble(16))
_OTHERS: tuple[Peer, ...] = (
    *(InProcessOpenVino(8), LlamaServer(8), InProcessOpenVino(16), LlamaServer(16)),
    VllmCpu(),
)
_NAME = "peers"
_TITLE = "the same model and prompts, one side after the other; medians over the rounds, ratios within a round"


def main(
    only: Annotated[str, typer.Option(help="Words, separated by commas: run sides with one in their name.")] = "",
    users: Annotated[str, typer.Option(help="Users of the closed loop, separated by commas.")] = "1,4,16",
    rounds: Annotated[int, typer.Option(help="Rounds; each starts, measures and stops every side.", min=1)] = 7,
    requests: Annotated[int, typer.Option(help="Requests of a load; 8 for each user where that is more.", min=1)] = 32,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Result file; a picture of that name is put beside it.")] = None,
) -> None:
    """Measure and print; about 6 minutes a round on two cores, and some more before the first for vLLM to compile.

    What there is after each round is kept. `make peers` installs the peers and writes the model in their formats.

    \b
    Examples:
      python -m benchmarks.peers
      python -m benchmarks.peers --only int8,q8_0 --users 16 --rounds 3 --no-keep
    """
    words = only.split(",")
    peers = [peer for peer in (*_OURS, *_OTHERS) if any(word in peer.name for word in words)]
    if not peers:
        names = ", ".join(peer.name for peer in (*_OURS, *_OTHERS))
        raise typer.BadParameter(f"no side is called like {only!r}; there are {names}", param_hint="--only")
    if missing := [f"{peer.name}: {lacks}" for peer in peers if (lacks := model_files.lacks(*peer.needs))]:
        raise typer.BadParameter("; ".join(missing), param_hint="--only")
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
        for number, sides in enumerate(measure(peers, plan, tell=lambda text: typer.echo(text, err=True)), start=1):
            found = rows(sides, peers)
            result |= {"rounds_done": number, "sides": described(sides), "rows": found}
            if is_kept:
                path = write_result(_NAME, result, out)
                panels = {
                    ours.precision: [peer.name for peer in peers if ours.name in {peer.name, peer.beside}]
                    for ours in _OURS
                }
                measures = {"tokens_per_s": "output tokens/s", "ttft_p50_ms": "TTFT p50, ms"}
                draw(found, panels, measures, path.with_suffix(".png"))
                typer.echo(f"written to {path}", err=True)
    except ServingError as exc:
        typer.echo(f"peers: {exc.message}", err=True)
        raise typer.Exit(1) from exc
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        wide_console().print(table(found, _TITLE))


if __name__ == "__main__":
    typer.run(main)
