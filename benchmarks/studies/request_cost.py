# SPDX-License-Identifier: Apache-2.0
"""The cost of a request on its way through the server, in microseconds of a core, by process; the engine costs nothing.

`python -m benchmarks.studies.request_cost --help`. Two servers are asked in turn: one whose models send responses past
Triton, and one whose models send all through Triton. A round has two loads of each, of answers of one token and of
many. From both, what a request costs once and what each response costs is solved, for each process of the server.
"""

import contextlib
from typing import Annotated, Any

import msgspec
import numpy as np
import psutil
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.support.costless_server import costless_deployment, demo_tokenizer
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask
from clients.exact_prompts import PromptMaker

_NAME = "request_cost_ways"
_WAYS = {"past Triton": True, "through Triton": False}
_STREAMS = (4, 16, 64)
_FEW, _MANY = 1, 100  # tokens of an answer
_REQUESTS = 640  # of a round's load of short answers
_SHARE_OF_LONG = 8  # as many fewer long answers
_ALL = "all"


class _Load(msgspec.Struct, frozen=True):
    """A load that has run.

    Attributes:
        cpu_us: of each kind of process.
    """

    num_requests: int
    num_responses: float
    cpu_us: dict[str, float]


def main(
    rounds: Annotated[int, typer.Option(help="Rounds of each number of streams.", min=1)] = 15,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=8)] = 16,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; six minutes."""
    maker = PromptMaker(demo_tokenizer(), input_tokens=input_tokens, seed=1)
    rows = []
    with contextlib.ExitStack() as stack:
        servers = {way: stack.enter_context(_server(is_direct=is_direct)) for way, is_direct in _WAYS.items()}
        progress = stack.enter_context(Progress(console=Console(stderr=True)))
        task = progress.add_task("", total=len(_STREAMS) * (rounds + 1))
        for streams in _STREAMS:
            seen: dict[str, list[dict[str, tuple[float, float]]]] = {way: [] for way in servers}
            for number in range(rounds + 1):
                progress.update(task, description=f"{streams} streams, round {number} of {rounds}", advance=1)
                for way, server in servers.items() if number % 2 else reversed(servers.items()):
                    few = _run(server, maker, streams, _FEW, _REQUESTS // streams)
                    many = _run(server, maker, streams, _MANY, max(1, _REQUESTS // streams // _SHARE_OF_LONG))
                    if number:  # the first round warms up
                        seen[way].append(_solved(few, many))
            rows += [{"streams": streams, "way": way, "core_us": _medians(each)} for way, each in seen.items()]
        where = environment(triton_http=servers["past Triton"].http)
    result: dict[str, object] = {
        "benchmark": _NAME,
        "engine": "simulated, without cost, 2 ms a step",
        "input_tokens": input_tokens,
        "rounds": rounds,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result(_NAME, result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _server(*, is_direct: bool) -> ThroughEnsemble:
    deployment = costless_deployment(f"{_NAME}_{'past' if is_direct else 'through'}")
    triton = deployment.triton.model_copy(update={"has_direct_responses": is_direct})
    return ThroughEnsemble(deployment.model_copy(update={"triton": triton}))


def _run(server: ThroughEnsemble, maker: PromptMaker, streams: int, tokens: int, times: int) -> _Load:
    asks = [Ask(maker.prompts(streams), tokens) for _ in range(times)]
    before_us, num_responses = _cpu_us(server), 0.0
    for ask in asks:
        num_responses += tokens * streams / server.run(ask).tokens_per_response
    after_us = _cpu_us(server)
    return _Load(streams * times, num_responses, {kind: after_us[kind] - before_us.get(kind, 0) for kind in after_us})


def _cpu_us(server: ThroughEnsemble) -> dict[str, float]:
    found: dict[str, float] = {}
    for process in server.processes():
        times = process.cpu_times()
        for kind in (_kind(process), _ALL):
            found[kind] = found.get(kind, 0.0) + 1e6 * (times.user + times.system)
    return found


def _kind(process: psutil.Process) -> str:
    command = " ".join(process.cmdline())
    if process.name() == "tritonserver":
        return "tritonserver"
    if '"kind":"grpc"' in command:
        return "frontend"
    if "serving.engine_process" in command:
        return "engine process"
    for model in ("ensemble", "tensorrt_llm"):
        if f"/{model}/" in command and "stub" in command:
            return f"stub of {model}"
    return "others"


def _solved(few: _Load, many: _Load) -> dict[str, tuple[float, float]]:
    """Return what a request and a response cost, by kind of process, in microseconds of a core."""
    counts = np.array([[load.num_requests, load.num_responses] for load in (few, many)])
    kinds = sorted(few.cpu_us.keys() & many.cpu_us.keys())
    spent = np.array([[load.cpu_us[kind] for kind in kinds] for load in (few, many)])
    request_us, response_us = np.linalg.solve(counts, spent)
    return {kind: (float(request_us[n]), float(response_us[n])) for n, kind in enumerate(kinds)}


def _medians(seen: list[dict[str, tuple[float, float]]]) -> dict[str, dict[str, Any]]:
    return {
        kind: {
            part: median_with_interval([one[kind][n] for one in seen]) for n, part in enumerate(("request", "response"))
        }
        for kind in seen[0]
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="microseconds of a core, medians and 90 % intervals")
    for column in ("streams", "responses go", "process", "a request", "a response"):
        table.add_column(column, justify="right")
    for row in rows:
        for kind, parts in row["core_us"].items():
            cells = [
                f"{parts[part]['median']:.0f} ({parts[part]['low']:.0f} to {parts[part]['high']:.0f})"
                for part in ("request", "response")
            ]
            table.add_row(str(row["streams"]), row["way"], kind, *cells)
        table.add_section()
    return table


if __name__ == "__main__":
    typer.run(main)
