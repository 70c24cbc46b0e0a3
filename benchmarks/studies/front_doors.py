# SPDX-License-Identifier: Apache-2.0
"""Front doors: our gRPC and our gateway beside Dynamo's frontend, LiteLLM's proxy and Triton's own OpenAI frontend.

`python -m benchmarks.studies.front_doors --help`. Every side has a simulated engine whose step takes the same fixed
time, so what differs is the way of a request and of its tokens. All sides run in turn in every round, each alone, at
their defaults, and are asked by the same client for the same prompts and for answers of an exact length: gRPC by the
contract, the others by OpenAI's `/v1/completions`, streamed. Each counts the tokens of prompts itself, and is refused
where it counts others.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from benchmarks.peers import model_files
from benchmarks.peers.dynamo import DynamoMocker
from benchmarks.peers.figures import medians, ratios
from benchmarks.peers.gateway import SimulatedGateway
from benchmarks.peers.litellm_proxy import LiteLlmProxy
from benchmarks.peers.peer import Peer
from benchmarks.peers.rounds import Plan, Side, measure
from benchmarks.peers.shown import described
from benchmarks.peers.simulated import SimulatedEnsemble
from benchmarks.peers.triton_openai import DEFAULT_FOLDER, TritonOpenAi, default_python
from benchmarks.studies.front_door_table import GATEWAY_RATIOS, GRPC_RATIOS, table
from benchmarks.support.report import environment, write_result
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from trireme.base.errors import ServingError

_NAME = "front_doors"
_WIDTH = 210  # columns of the table
_GRPC, _GATEWAY = "trireme, gRPC", "trireme, gateway"
_RATIOS = ("tokens_per_s", "ttft_p50_ms", "tpot_p50_ms", "tokens_per_core_s")
_BESIDE = {GATEWAY_RATIOS: _GATEWAY, GRPC_RATIOS: _GRPC}


def main(
    only: Annotated[str, typer.Option(help="Words, separated by commas: run sides with one in their name.")] = "",
    users: Annotated[str, typer.Option(help="Users of the closed loop, separated by commas.")] = "1,16,64,128",
    rounds: Annotated[int, typer.Option(help="Rounds; each starts, measures and stops every side.", min=1)] = 5,
    seconds: Annotated[float, typer.Option(help="How long requests of a load are begun.", min=1)] = 5.0,
    step_ms: Annotated[float, typer.Option(help="Time of an engine step.", min=0.1)] = 10.0,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 64,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 64,
    processes: Annotated[int, typer.Option(help="Processes of the client.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the prompts.")] = 1,
    triton_openai: Annotated[
        Path, typer.Option(help="Folder python/openai of Triton's server, as NVIDIA's containers have it.")
    ] = DEFAULT_FOLDER,
    triton_python: Annotated[
        str, typer.Option(help="Python with the packages of that frontend, and with tritonserver.")
    ] = default_python(),
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
    out: Annotated[Path | None, typer.Option(help="Result file.")] = None,
) -> None:
    """Measure and print; some 5 minutes a round on two cores. `make peers` installs Dynamo and LiteLLM.

    Triton's frontend is in no registry: without its folder the other sides are measured, and the result says so.

    \b
    Examples:
      python -m benchmarks.studies.front_doors
      python -m benchmarks.studies.front_doors --only gateway,Dynamo --users 64 --rounds 3 --no-keep
    """
    tokenizer_dir = load_deployment(DEFAULT_DEPLOYMENT).model.tokenizer.dir
    words = only.split(",")
    triton = TritonOpenAi(tokenizer_dir, step_ms=step_ms, folder=triton_openai, python=triton_python)
    sides: list[Peer] = [
        SimulatedEnsemble(tokenizer_dir, step_ms=step_ms, has_delay=True, name=_GRPC),
        SimulatedGateway(tokenizer_dir, step_ms=step_ms, name=_GATEWAY),
        DynamoMocker(tokenizer_dir, step_ms=step_ms),
        LiteLlmProxy(tokenizer_dir, step_ms=step_ms),
        triton,
    ]
    peers = [peer for peer in sides if any(word in peer.name for word in words)]
    if not peers:
        names = "; ".join(peer.name for peer in sides)
        raise typer.BadParameter(f"no side is called like {only!r}; there are {names}", param_hint="--only")
    if missing := [f"{peer.name}: {lacks}" for peer in peers if (lacks := model_files.lacks(*peer.needs))]:
        raise typer.BadParameter("; ".join(missing), param_hint="--only")
    left_out = []
    if triton in peers and (because := triton.lacks()) is not None:
        typer.echo(f"{triton.name} is left out: {because}", err=True)
        left_out.append({"side": triton.name, "because": because})
        peers.remove(triton)
        if not peers:
            raise typer.Exit(1)
    plan = Plan(
        users=tuple(int(part) for part in users.split(",")),
        num_rounds=rounds,
        num_requests=0,
        seconds=seconds,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        tokenizer_dir=str(tokenizer_dir),
        seed=seed,
        num_processes=processes,
        adds_special_tokens=False,
    )
    result: dict[str, object] = {
        "benchmark": _NAME,
        "step_ms": step_ms,
        "plan": {**msgspec.to_builtins(plan), "tokenizer_dir": "the demo model's"},
        "not_run": left_out,
        "environment": environment(),
    }
    found: list[dict[str, Any]] = []
    try:
        for number, measured in enumerate(measure(peers, plan, tell=lambda text: typer.echo(text, err=True)), start=1):
            found = rows(measured, peers)
            result |= {"rounds_done": number, "sides": described(measured), "rows": found}
            if is_kept:
                typer.echo(f"written to {write_result(_NAME, result, out)}", err=True)
    except ServingError as exc:
        typer.echo(f"{_NAME}: {exc.message}", err=True)
        raise typer.Exit(1) from exc
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console(width=_WIDTH).print(table(found, left_out))


def rows(sides: Mapping[str, Side], peers: Sequence[Peer]) -> list[dict[str, Any]]:
    """Return a row for each side and number of users, with ratios of each side of ours over it within a round."""
    found = []
    for peer in peers:
        for num_users, measured in sides[peer.name].rounds.items():
            row: dict[str, Any] = {"side": peer.name, "users": num_users, **medians(measured)}
            for name, ours in _BESIDE.items():
                if ours in sides and ours != peer.name:
                    row[name] = ratios(sides[ours].rounds[num_users], measured, _RATIOS)
            found.append(row)
    return found


if __name__ == "__main__":
    typer.run(main)
