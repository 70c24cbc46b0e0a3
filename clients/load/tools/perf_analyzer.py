# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench perf-analyzer`: NVIDIA's perf_analyzer on a workload of ours, as the run of any tool.

What it prints as latency is that of whole answers; the figures here come from the times of every response in its
export, as those of the other tools do.
"""

import itertools
import json
import re
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from clients.access import Access, grpc_endpoint
from clients.access_options import with_access
from clients.infer_messages import GenerateRequest
from clients.load import load_arguments as options
from clients.load.load_options import Load
from clients.load.load_plan import Session
from clients.load.run_command import warm_up
from clients.load.run_origin import run_info
from clients.load.tools.tool_run import ToolRun, find_tool, keep_run, run_tool
from clients.load_report.summary import print_summary
from clients.load_run.load_record import DONE, LoadRecord
from clients.load_run.run_folder import Run, refuse_used
from trireme.base.errors import ServerError

HOW_TO_INSTALL = "`make bench-tools` in a checkout installs it"
PLACE = "perf-analyzer/path/perf_analyzer"
# Source: its docs/cli.md, and what it prints with --help (2.51): -H is for HTTP alone.
NO_PLACE_FOR = {
    "token_file": "its -H is for HTTP, and over gRPC it sends no key",
    "token_env": "its -H is for HTTP, and over gRPC it sends no key",
    "server_name": "it expects the name of the address",
}
_CUT = 65536  # an export of a multiple of so many bytes has lost its end
_ATTEMPTS = 3
_NOTE = (
    "perf_analyzer's own clock and connection: latency counts from when it sent a request, also in an open loop, so a "
    "wait before that is not in it."
)


@with_access
def perf_analyzer(
    *,
    out: options.OutOption,
    url: options.GrpcUrlOption = "localhost:8001",
    model: options.ModelOption = "ensemble",
    rate: options.RateOption = None,
    concurrency: options.ConcurrencyOption = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all; perf_analyzer may make a few more.")] = 200,
    workload: options.WorkloadOption = None,
    isl: options.IslOption = None,
    osl: options.OslOption = None,
    arrivals: options.ArrivalsOption = "poisson",
    warmup: options.WarmupOption = 8,
    tokenizer: options.TokenizerOption = None,
    seed: options.SeedOption = 1,
    metrics: options.MetricsOption = None,
    binary: options.BinaryOption = None,
    is_json: options.JsonOption = False,
    access: Access,
) -> None:
    """Put a load on a running server with NVIDIA's perf_analyzer and keep every request of it.

    \b
    Examples:
      trireme bench perf-analyzer --concurrency 16 --requests 200 --out runs/pa-16
      trireme bench perf-analyzer --rate 10 --requests 300 --workload chat.yaml --out runs/pa-rate-10
    """
    refuse_used(out)
    options.refuse_openai_url(url, "perf_analyzer")
    options.refuse_access(access, "perf_analyzer", fields=NO_PLACE_FOR)
    program = find_tool("perf_analyzer", PLACE, given=binary, how=HOW_TO_INSTALL)
    load = Load(
        url=url, access=access, model=model,
        workload=options.chosen_workload(workload, isl=isl, osl=osl), rate_per_s=rate,
        num_users=concurrency, arrivals=arrivals, num_requests=requests, seed=seed,
    )  # fmt: skip
    options.refuse_what_only_ours_plays(load, "perf_analyzer")
    load = options.checked(load, tokenizer)
    run = measure(load, out, program, warmup=warmup, metrics=options.metrics_url(metrics, url, access))
    print_summary(run, is_json=is_json)


def measure(load: Load, out: Path, program: Path, *, warmup: int, metrics: str | None) -> Run:
    """Run perf_analyzer and write the run's folder.

    Raises:
        ServerError: it failed.
    """
    info = run_info(load, tool="perf_analyzer", warmup=warmup)
    if warmup:
        warm_up(load, warmup)
    plan = list(load.plan())
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as name:
        folder = Path(name)
        (folder / "input.json").write_text(json.dumps({"data": [_row(session) for session in plan]}))
        command = [str(program), *_options(load)]
        found, exported = whole_export(command, folder, metrics, load.access)
    records = records_of(exported, found.start_epoch_ns, plan)
    version = re.search(r"\d+\.\d+\.\d+", str(exported.get("version", "")))
    info.tool += f" {version[0] if version else '?'}"
    info.commands.append(shlex.join(command))
    info.tool_says, info.note = _said(found.output), _NOTE if load.is_open else ""
    return keep_run(out, info, found, records)


def _said(output: str) -> dict[str, str]:
    """Return the client's part of what perf_analyzer prints: its latency is that of whole answers."""
    _, _, client = output.partition("Client:")
    lines = (line.strip().partition(": ") for line in client.partition("Server:")[0].splitlines())
    return {name: value for name, _, value in lines if value}


def _options(load: Load) -> list[str]:
    target, access = grpc_endpoint(load.url, load.access)
    how = ["-m", load.model, "-u", target, "-i", "grpc", "--async", "--streaming", "--input-data", "input.json"]
    how += tls_options(access)
    if load.rate_per_s is not None:
        how += ["--request-rate-range", f"{load.rate_per_s:g}", "--request-distribution", load.arrivals]
    else:
        how += ["--concurrency-range", str(load.num_users)]
    # It refuses fewer requests than users or the rate.
    least = max(load.num_requests or 1, load.num_users or 1, -int(-(load.rate_per_s or 1) // 1))
    return [*how, "--request-count", str(least), "--profile-export-file", "export.json"]


def tls_options(access: Access) -> list[str]:
    """Return perf_analyzer's options for TLS over gRPC."""
    if not access.uses_tls:
        return []
    files = {
        "root-certifications": access.ca_file,
        "certificate-chain": access.cert_file,
        "private-key": access.key_file,
    }
    named = [part for name, path in files.items() if path for part in (f"--ssl-grpc-{name}-file", path)]
    return ["--ssl-grpc-use-ssl", *named]


def _row(session: Session) -> dict[str, list[Any]]:
    """Return the tensors of one request by name."""
    request: GenerateRequest = session.request(0, "")
    values = msgspec.structs.asdict(request)
    return {
        name: [*value] if isinstance(value, tuple) else [value] for name, value in values.items() if value is not None
    }


def whole_export(
    command: Sequence[str], folder: Path, metrics: str | None, access: Access
) -> tuple[ToolRun, dict[str, Any]]:
    """Run perf_analyzer and return its export.

    Once in some tens of runs its export is cut, and it is run again.

    Raises:
        ServerError: it failed, or its export was cut each time.
    """
    export = folder / "export.json"
    for attempt in itertools.count(1):
        export.unlink(missing_ok=True)  # it writes over no file
        found = run_tool(command, cwd=folder, metrics=metrics, access=access, what="perf_analyzer")
        text = export.read_bytes() if export.exists() else b""
        if text and len(text) % _CUT:
            break
        if attempt == _ATTEMPTS:
            raise ServerError(
                f"perf_analyzer wrote no whole export in {_ATTEMPTS} runs; it said: {found.output[-500:]}"
            )
    return found, json.loads(text)


def records_of(exported: dict[str, Any], start_epoch_ns: int, plan: Sequence[Session]) -> list[LoadRecord]:
    """Return the records in perf_analyzer's profile export.

    Args:
        start_epoch_ns: start of the run, on the machine's clock.
    """
    limits = {session.request(0, "").text_input: session.turns[0].max_tokens for session in plan}
    records = []
    for number, request in enumerate(request for one in exported["experiments"] for request in one["requests"]):
        sent_ns = request["timestamp"] - start_epoch_ns
        times_ns = [at - start_epoch_ns for at in request["response_timestamps"]]
        outputs = request["response_outputs"]
        limit = limits.get(request["request_inputs"].get("text_input", ""))
        tokens = [_count(output.get("num_output_tokens"), limit) for output in outputs]
        records.append(
            LoadRecord(
                session=number,
                due_ns=sent_ns,
                sent_ns=sent_ns,
                end_ns=times_ns[-1] if times_ns else sent_ns,
                end=DONE if times_ns else "INTERNAL",
                times_ns=times_ns,
                tokens=tokens,
                input_tokens=_count(outputs[0].get("num_input_tokens"), None) or None if outputs else None,
                max_tokens=limit,
            )
        )
    return sorted(records, key=lambda record: record.due_ns)


def _count(value: object, limit: int | None) -> int:
    """Return a count, or 0; an output that a response does not have is exported with whatever lay in memory."""
    return value if isinstance(value, int) and 0 <= value <= (limit or 2**20) else 0
