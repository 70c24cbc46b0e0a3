# SPDX-License-Identifier: Apache-2.0
"""The cost of tracing, as ratios to the same server without: its CPU time for a request, and tokens/s.

`python -m benchmarks.tracing_cost --help`. All servers are up during the whole run and asked in turn. The worst case
for what is paid by the request: short answers of an engine that costs nothing.
"""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.costless_server import costless_deployment, demo_tokenizer
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask
from clients.exact_prompts import PromptMaker
from ensemble_configs.spec.deployment import DeploymentSpec

_SIDES: dict[str, dict[str, object] | None] = {
    "off": None,
    "off again": None,  # how far two equal servers are apart
    "sampled 0 %": {"sample_ratio": 0.0},
    "sampled 10 %": {"sample_ratio": 0.1},
    "sampled 100 %": {"sample_ratio": 1.0},
    "and Triton's own": {"sample_ratio": 1.0, "is_triton_traced": True},
}


class _Figures(msgspec.Struct):
    cpu_us: float  # of all the server's processes, for a request
    tokens_per_s: float


def main(
    streams: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 32,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 16,
    rounds: Annotated[int, typer.Option(help="Runs of each side.", min=1)] = 15,
    asks: Annotated[int, typer.Option(help="Times that all requests are sent in a run.", min=1)] = 4,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; some minutes."""
    maker = PromptMaker(demo_tokenizer(), input_tokens=16, seed=1)
    runs: dict[str, list[_Figures]] = {name: [] for name in _SIDES}
    with contextlib.ExitStack() as stack:
        endpoint = stack.enter_context(_sink())
        sides = {
            name: stack.enter_context(
                ThroughEnsemble(_deployment(number, tracing and {"endpoint": endpoint} | tracing))
            )
            for number, (name, tracing) in enumerate(_SIDES.items())
        }
        for number in track(range(rounds + 1), console=Console(stderr=True), transient=True):
            asked = [Ask(maker.prompts(streams), output_tokens) for _ in range(asks)]
            for name in sorted(sides, reverse=bool(number % 2)):
                figures = _run(sides[name], asked)
                if number:  # the first round warms up
                    runs[name].append(figures)
        where = environment(triton_http=sides["off"].http)
    rows = [_row(name, runs[name], runs["off"]) for name in _SIDES]
    result: dict[str, object] = {
        "benchmark": "tracing_cost",
        "streams": streams,
        "output_tokens": output_tokens,
        "rounds": rounds,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result('tracing_cost', result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _deployment(number: int, tracing: dict[str, object] | None) -> DeploymentSpec:
    more = {} if tracing is None else {"tracing": tracing}
    return costless_deployment(f"tracing_cost_{number}", **more)


def _run(side: ThroughEnsemble, asked: list[Ask]) -> _Figures:
    before_s = side.cpu_s()
    rates = [side.run(ask).tokens_per_s for ask in asked]
    num_requests = sum(len(ask.prompts) for ask in asked)
    return _Figures(1e6 * (side.cpu_s() - before_s) / num_requests, sum(rates) / len(rates))


@contextlib.contextmanager
def _sink() -> Iterator[str]:
    """Yield the address of a receiver that takes everything and looks at nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _row(name: str, runs: list[_Figures], off: list[_Figures]) -> dict[str, Any]:
    pairs = list(zip(runs, off, strict=True))
    return {
        "side": name,
        "cpu_us_per_request": median_with_interval([run.cpu_us for run in runs]),
        "tokens_per_s": median_with_interval([run.tokens_per_s for run in runs]),
        "cpu_ratio": median_with_interval([run.cpu_us / one.cpu_us for run, one in pairs]),
        "throughput_ratio": median_with_interval([run.tokens_per_s / one.tokens_per_s for run, one in pairs]),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="what tracing costs a server; medians, 90 % intervals")
    for column in ("tracing", "server us/request", "ratio", "tokens/s", "ratio"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["side"],
            f"{row['cpu_us_per_request']['median']:.0f}",
            _ratio(row["cpu_ratio"]),
            f"{row['tokens_per_s']['median']:.0f}",
            _ratio(row["throughput_ratio"]),
        )
    return table


def _ratio(figures: dict[str, float]) -> str:
    return f"{figures['median']:.3f} ({figures['low']:.3f} to {figures['high']:.3f})"


if __name__ == "__main__":
    typer.run(main)
