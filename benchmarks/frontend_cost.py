# SPDX-License-Identifier: Apache-2.0
"""The cost of gRPC's frontend: the same server by its port, over Triton by its own.

`python -m benchmarks.frontend_cost --help`. Pairs are asked in turn, the order alternating.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
import psutil
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.costless_server import costless_deployment, demo_tokenizer
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask, Run
from clients.exact_prompts import PromptMaker

_STREAMS = (1, 16, 64)


class _Figures(msgspec.Struct):
    run: Run
    frontend_us: float  # of a core, for a response


def main(
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 100,
    rounds: Annotated[int, typer.Option(help="Pairs of each number of streams.", min=1)] = 15,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; a minute or two."""
    maker = PromptMaker(demo_tokenizer(), input_tokens=16, seed=1)
    rows = []
    with ThroughEnsemble(costless_deployment("frontend_cost")) as server, _direct(server) as direct:
        for streams in _STREAMS:
            pairs = []
            for number in track(range(rounds + 1), console=Console(stderr=True), transient=True):
                ask = Ask(maker.prompts(streams), output_tokens)
                sides = {"frontend": server, "direct": direct}
                seen = {name: _run(sides[name], server, ask) for name in sorted(sides, reverse=bool(number % 2))}
                if number:  # the first round warms up
                    pairs.append((seen["frontend"], seen["direct"]))
            rows.append(_row(streams, pairs))
        where = environment(triton_http=server.http)
    result: dict[str, object] = {
        "benchmark": "frontend_cost",
        "output_tokens": output_tokens,
        "rounds": rounds,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result('frontend_cost', result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


@contextmanager
def _direct(server: ThroughEnsemble) -> Iterator[ThroughEnsemble]:
    """Yield the server, asked by Triton's own port."""
    [triton] = [each for each in server.processes() if each.name() == "tritonserver"]
    [port] = [part.partition("=")[2] for part in triton.cmdline() if part.startswith("--grpc-port=")]
    direct = copy.copy(server)
    direct.url = f"127.0.0.1:{port}"
    yield direct


def _run(side: ThroughEnsemble, server: ThroughEnsemble, ask: Ask) -> _Figures:
    [frontend] = [each for each in server.processes() if '"kind":"grpc"' in " ".join(each.cmdline())]
    before_s = _cpu_s(frontend)
    run = side.run(ask)
    num_responses = ask.output_tokens * len(ask.prompts) / run.tokens_per_response
    return _Figures(run, 1e6 * (_cpu_s(frontend) - before_s) / num_responses)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _row(streams: int, pairs: list[tuple[_Figures, _Figures]]) -> dict[str, Any]:
    def ratio(field: str) -> dict[str, float]:
        return median_with_interval([getattr(one.run, field) / getattr(other.run, field) for one, other in pairs])

    return {
        "streams": streams,
        "ttft_ratio": ratio("ttft_ms"),
        "itl_p99_ratio": ratio("itl_p99_ms"),
        "throughput_ratio": ratio("tokens_per_s"),
        "frontend_us_per_response": sum(one.frontend_us for one, _ in pairs) / len(pairs),
        "responses_per_s": sum(one.run.tokens_per_s / one.run.tokens_per_response for one, _ in pairs) / len(pairs),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="gRPC's frontend over Triton alone; medians, 90 % intervals")
    for column in ("streams", "responses/s", "TTFT", "ITL p99", "tokens/s", "frontend us/response"):
        table.add_column(column, justify="right")
    for row in rows:
        ratios = [_with_interval(row[f"{name}_ratio"]) for name in ("ttft", "itl_p99", "throughput")]
        per_s, used = f"{row['responses_per_s']:.0f}", f"{row['frontend_us_per_response']:.0f}"
        table.add_row(str(row["streams"]), per_s, *ratios, used)
    return table


def _with_interval(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


if __name__ == "__main__":
    typer.run(main)
