# SPDX-License-Identifier: Apache-2.0
"""The cost of the gateway: OpenAI's completions through it, over the same requests by gRPC and by Envoy.

`python -m benchmarks.gateway_cost --help`. The engine costs nothing. Sides take turns, in a random order: gRPC to the
ensemble; the gateway, with a ledger; Envoy before the server's own HTTP (`generate_stream`), as the plainest proxy that
there is.
"""

import contextlib
import os
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil
import typer
import yaml
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.support.costless_server import costless_deployment, demo_tokenizer
from benchmarks.support.http1_streams import Http1Streams, Received
from benchmarks.support.report import environment, median_with_interval, write_result
from benchmarks.support.through_ensemble import ThroughEnsemble
from benchmarks.support.workload import Ask, Run
from clients.exact_prompts import PromptMaker
from trireme.base.free_ports import free_ports
from trireme.base.project_files import CODE_ROOT

_NAME = "gateway_cost"
_STREAMS = (1, 16, 64, 128)
_GRPC, _GATEWAY, _ENVOY = "gRPC", "gateway", "Envoy"
_READY_S = 20.0
_ENVOY_BINARY = CODE_ROOT / ".tools/envoy/envoy/_bin/envoy"

Side = Callable[[Ask], Run]


class _OverHttp:
    """A server of events over HTTP.

    Args:
        body_of: makes the body of a prompt.
        is_text: whether an event holds text.
    """

    def __init__(
        self, process: psutil.Process, port: int, path: str, body_of: Callable[[str, int], dict[str, Any]],
        is_text: Callable[[bytes], bool],
    ) -> None:  # fmt: skip
        self.process = process
        self._url, self._path, self._body_of, self._is_text = f"127.0.0.1:{port}", path, body_of, is_text

    def run(self, ask: Ask) -> Run:
        """Send every request at once, and read each to its last token."""
        bodies = [msgspec.json.encode(self._body_of(prompt, ask.output_tokens)) for prompt in ask.prompts]
        with contextlib.closing(Http1Streams(self._url, len(bodies))) as streams:
            seen = streams.run(self._path, bodies)
        arrivals_s = [[time_s - seen.start_s for time_s in self._texts_s(each)] for each in seen.received]
        return Run.of(arrivals_s, num_tokens=ask.output_tokens * len(ask.prompts), client_cpu_s=seen.cpu_s)

    def _texts_s(self, received: Received) -> list[float]:
        found = [arrived_s for arrived_s, data in received.events() if self._is_text(data)]
        if not found:
            raise RuntimeError(f"an answer without text: {received.pieces[-1][1][-500:]!r}")
        return found


def main(
    output_tokens: Annotated[int, typer.Option(help="Tokens of each answer.", min=2)] = 100,
    rounds: Annotated[int, typer.Option(help="Rounds of each number of streams.", min=1)] = 15,
    is_json: Annotated[bool, typer.Option("--json", help="Print the result instead of a table.")] = False,
    is_kept: Annotated[bool, typer.Option("--keep/--no-keep", help="Write the result to benchmarks/results.")] = True,
) -> None:
    """Measure and print; some three minutes."""
    maker = PromptMaker(demo_tokenizer(), input_tokens=16, seed=1)
    rng, rows = random.Random(1), []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(ThroughEnsemble(costless_deployment(_NAME)))
        gateway = stack.enter_context(_gateway(server))
        envoy = stack.enter_context(_envoy(server))
        sides: dict[str, Side] = {_GRPC: server.run, _GATEWAY: gateway.run, _ENVOY: envoy.run}
        for streams in _STREAMS:
            seen: list[dict[str, Run]] = []
            gateway_us = []
            for number in track(range(rounds + 1), console=Console(stderr=True), transient=True):
                ask = Ask(maker.prompts(streams), output_tokens)
                found: dict[str, Run] = {}
                for name in rng.sample(list(sides), len(sides)):
                    before_s = _cpu_s(gateway.process)
                    found[name] = sides[name](ask)
                    if name == _GATEWAY and number:
                        num = output_tokens * streams / found[name].tokens_per_response
                        gateway_us.append(1e6 * (_cpu_s(gateway.process) - before_s) / num)
                if number:  # the first round warms up
                    seen.append(found)
            rows.append(_row(streams, seen, gateway_us))
        where = environment(triton_http=server.http)
    result: dict[str, object] = {
        "benchmark": _NAME,
        "engine": "simulated, without cost",
        "output_tokens": output_tokens,
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


def _completion(prompt: str, tokens: int) -> dict[str, Any]:
    exact = {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True, "temperature": 0}
    return {"prompt": prompt, "stream": True, **exact}


@contextlib.contextmanager
def _gateway(server: ThroughEnsemble) -> Iterator[_OverHttp]:
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        deployment = Path(folder) / "deployment.yaml"
        deployment.write_text(yaml.safe_dump(costless_deployment(_NAME).model_dump(mode="json")))
        command = [sys.executable, "-m", "trireme", "gateway", "serve", "--deployment", str(deployment)]
        ledger = ["--ledger", str(Path(folder) / "ledger.sqlite"), "--ledger-journal", folder]
        process = subprocess.Popen([*command, "--url", server.url, "--port", str(port), *ledger])
        try:
            _wait(f"http://127.0.0.1:{port}/health/ready")
            yield _OverHttp(
                psutil.Process(process.pid),
                port,
                "/v1/completions",
                _completion,
                lambda data: b'"text":"' in data and b'"text":""' not in data,
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait()


@contextlib.contextmanager
def _envoy(server: ThroughEnsemble) -> Iterator[_OverHttp]:
    [port] = free_ports(1)
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "envoy.yaml"
        config.write_text(yaml.safe_dump(_envoy_config(port, int(server.http.rpartition(":")[2]))))
        command = [str(_ENVOY_BINARY), "-c", str(config), "--concurrency", "1", "--log-level", "error"]
        process = subprocess.Popen([*command, "--base-id", str(os.getpid())])
        try:
            _wait(f"http://127.0.0.1:{port}/v2/health/ready")
            yield _OverHttp(
                psutil.Process(process.pid),
                port,
                "/v2/models/ensemble/generate_stream",
                lambda prompt, tokens: {
                    "text_input": prompt, "max_tokens": tokens, "min_tokens": tokens, "end_id": -1, "stream": True,
                    "exclude_input_in_output": True,
                },
                lambda data: b'"text_output":""' not in data,
            )  # fmt: skip
        finally:
            process.terminate()
            process.wait()


def _envoy_config(port: int, to_port: int) -> dict[str, Any]:
    def address(number: int) -> dict[str, Any]:
        return {"socket_address": {"address": "127.0.0.1", "port_value": number}}

    kind = "type.googleapis.com/envoy.extensions.filters"
    routes = [{"match": {"prefix": "/"}, "route": {"cluster": "server", "timeout": "0s"}}]
    manager = {
        "@type": f"{kind}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "http",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        "http_filters": [{"name": "router", "typed_config": {"@type": f"{kind}.http.router.v3.Router"}}],
    }
    endpoint = {"lb_endpoints": [{"endpoint": {"address": address(to_port)}}]}
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": address(port),
                    "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
                }
            ],
            "clusters": [{"name": "server", "load_assignment": {"cluster_name": "server", "endpoints": [endpoint]}}],
        }
    }


def _wait(url: str) -> None:
    deadline_s = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=2).close()
            return
        if time.monotonic() > deadline_s:
            raise SystemExit(f"{url} did not become ready")
        time.sleep(0.1)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _row(streams: int, seen: list[dict[str, Run]], gateway_us: list[float]) -> dict[str, Any]:
    def chunks_per_s(run: Run) -> float:
        return run.tokens_per_s / run.tokens_per_response

    return {
        "streams": streams,
        "ttft_added_ms": median_with_interval([one[_GATEWAY].ttft_ms - one[_GRPC].ttft_ms for one in seen]),
        "throughput_over_grpc": median_with_interval(
            [one[_GATEWAY].tokens_per_s / one[_GRPC].tokens_per_s for one in seen]
        ),
        "chunks_over_envoy": median_with_interval(
            [chunks_per_s(one[_GATEWAY]) / chunks_per_s(one[_ENVOY]) for one in seen]
        ),
        "throughput_over_envoy": median_with_interval(
            [one[_GATEWAY].tokens_per_s / one[_ENVOY].tokens_per_s for one in seen]
        ),
        "chunks_per_s": {side: median_with_interval([chunks_per_s(one[side]) for one in seen]) for side in seen[0]},
        "tokens_per_s": {side: median_with_interval([one[side].tokens_per_s for one in seen]) for side in seen[0]},
        "gateway_us_per_chunk": median_with_interval(gateway_us),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(title="the gateway over gRPC to the ensemble, and over Envoy alone; medians, 90 % intervals")
    for column in ("streams", "TTFT added, ms", "tokens/s over gRPC", "chunks/s over Envoy", "us of a core a chunk"):
        table.add_column(column, justify="right")
    for row in rows:
        names = ("ttft_added_ms", "throughput_over_grpc", "chunks_over_envoy", "gateway_us_per_chunk")
        table.add_row(str(row["streams"]), *(_with_interval(row[name]) for name in names))
    return table


def _with_interval(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


if __name__ == "__main__":
    typer.run(main)
