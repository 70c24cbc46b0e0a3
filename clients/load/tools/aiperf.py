# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench aiperf`: NVIDIA's aiperf on a workload of ours, over HTTP, as the run of any tool.

It counts the tokens of the answers' text anew; the figures here come from the times and the server's own counts of
every event, as those of the other tools do, and what it says itself stands beside them.
"""

import asyncio
import json
import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import msgspec
import typer

from clients.access import Access, is_grpc_url
from clients.access_options import with_access
from clients.load import load_arguments as options
from clients.load.load_options import Load
from clients.load.load_plan import Session
from clients.load.openai.openai_stream import completion_body, completions_url, is_openai_url, refuse_unknown
from clients.load.run_origin import run_info
from clients.load.tools.aiperf_records import records_of
from clients.load.tools.genai_perf import said_figures
from clients.load.tools.tool_run import find_tool, keep_run, run_tool
from clients.load_report.summary import print_summary
from clients.load_run.run_folder import Run, refuse_used
from trireme.base.errors import RequestError, ServerError

# Source: aiperf's src/aiperf/transports/http_defaults.py: of TLS it has only whether certificates are checked, by
# Python's defaults, which SSL_CERT_FILE changes; and docs of its command line: a key is its --api-key.
_NO_PLACE_FOR = {
    "cert_file": "it has no client certificates",
    "server_name": "it expects the name of the address",
    "token_file": "it takes a key only on its command line, where others could read it",
    "token_env": "it takes a key only on its command line, where others could read it",
}
_NOTE = (
    "aiperf counts the tokens of the answers' text anew where it speaks for itself; the figures above are of "
    "the tokens that the server counted, from aiperf's raw records."
)
# Stand for what each row of the data set says; aiperf escapes nothing in a number.
_TEXT, _TOKENS = "@text@", "@max_tokens@"


@with_access
def aiperf(
    *,
    out: options.OutOption,
    tokenizer: Annotated[Path, typer.Option(help="Folder of the model's tokenizer: prompts have exact lengths by it.")],
    url: Annotated[
        str,
        typer.Option(help="host:port of Triton's HTTP endpoint, or http://HOST:PORT/v1 of an OpenAI-compatible one."),
    ] = "localhost:8000",
    model: options.ModelOption = "ensemble",
    rate: options.RateOption = None,
    concurrency: options.ConcurrencyOption = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 100,
    workload: options.WorkloadOption = None,
    isl: options.IslOption = None,
    osl: options.OslOption = None,
    arrivals: options.ArrivalsOption = "poisson",
    warmup: options.WarmupOption = 8,
    seed: options.SeedOption = 1,
    metrics: options.MetricsOption = None,
    binary: options.BinaryOption = None,
    is_json: options.JsonOption = False,
    access: Access,
) -> None:
    """Put a load on a running server with NVIDIA's aiperf, over HTTP, and keep every request of it.

    It is several processes of its own: on a machine with few cores they take them from the server. It takes a key only
    on its command line, where others could read it, so OPENAI_API_KEY is not sent.

    \b
    Examples:
      trireme bench aiperf --concurrency 16 --requests 200 --tokenizer /models/mine --out runs/aiperf-16
      trireme bench aiperf --url http://localhost:8080/v1 --model mine --rate 5 --tokenizer /models/mine --out runs/a
    """
    refuse_used(out)
    options.refuse_access(access, "aiperf", fields=_NO_PLACE_FOR)
    if is_grpc_url(url) and "://" in url:
        raise RequestError(
            f"aiperf asks over HTTP: --url is host:port of Triton's HTTP endpoint, or http://HOST:PORT/v1, got {url!r}",
            field="url",
            value=url,
        )
    program = find_tool(
        "aiperf",
        "aiperf/bin/aiperf",
        given=binary,
        how="`scripts/bootstrap.py --only aiperf` in a checkout installs it",
    )
    tokenizer = options.tokenizer_folder(tokenizer)
    load = Load(
        url=url, access=access, model=model,
        workload=options.chosen_workload(workload, isl=isl, osl=osl), rate_per_s=rate,
        num_users=concurrency, arrivals=arrivals, num_requests=requests, seed=seed,
    )  # fmt: skip
    options.refuse_what_only_ours_plays(load, "aiperf")
    load = options.checked(load, tokenizer)
    run = measure(load, out, program, warmup=warmup, metrics=options.metrics_url(metrics, url, access))
    print_summary(run, is_json=is_json)


def measure(load: Load, out: Path, program: Path, *, warmup: int, metrics: str | None) -> Run:
    """Run aiperf and write the run's folder.

    Raises:
        ServerError: it failed.
        RequestError: the workload has what aiperf cannot be told.
    """
    info = run_info(load, tool="aiperf", warmup=warmup)
    warm = msgspec.structs.replace(load, num_requests=warmup, seed=load.seed + 1_000_003)
    plan = [*warm.plan(), *load.plan()]  # it takes the rows in this order
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as name:
        folder = Path(name)
        (folder / "input.jsonl").write_text("".join(_row(session) for session in plan))
        (folder / "template.json").write_text(_template(load, plan[-1]))
        command = [str(program), *_options(load, folder, warmup=warmup)]
        trusted = {"SSL_CERT_FILE": load.access.ca_file} if load.access.ca_file else {}
        found = run_tool(
            command, cwd=folder, env={"COLUMNS": "200", **trusted}, metrics=metrics, access=load.access, what="aiperf"
        )
        records = records_of(
            folder / "artifacts" / "profile_export_raw.jsonl", found.start_epoch_ns,
            is_openai=is_openai_url(load.url), is_open=load.is_open,
        )  # fmt: skip
        said = _said(folder / "artifacts" / "profile_export_aiperf.json", found.output)
    info.tool += f" {said.get('aiperf_version', '?')}"
    info.commands.append(shlex.join(command))
    info.tool_says, info.note = said_figures(said), _NOTE
    return keep_run(out, info, found, records)


def _row(session: Session) -> str:
    request = session.request(0, "")
    refuse_unknown(request)  # a row has no place for a class or a tenant
    return json.dumps({"text": request.text_input, "output_length": request.max_tokens}) + "\n"


def _template(load: Load, session: Session) -> str:
    """Return the body of a request for aiperf's template engine."""
    request = session.request(0, "")
    if is_openai_url(load.url):
        from clients.load.openai.openai_client import takes_counts  # noqa: PLC0415  aiohttp, a quarter of a second

        counts_each = asyncio.run(takes_counts(load.url, load.model, load.access))
        body = msgspec.json.decode(completion_body(request, model=load.model, counts_each=counts_each))
    else:
        body = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not None}
    body["prompt" if "prompt" in body else "text_input"] = _TEXT
    for name in {"max_tokens", "min_tokens"} & body.keys():
        body[name] = _TOKENS
    return json.dumps(body).replace(f'"{_TEXT}"', "{{ text|tojson }}").replace(f'"{_TOKENS}"', "{{ max_tokens }}")


def _options(load: Load, folder: Path, *, warmup: int) -> list[str]:
    if is_openai_url(load.url):
        parts = urlsplit(completions_url(load.url))
        base, path, field = f"{parts.scheme}://{parts.netloc}", parts.path, "choices[0].text"
    else:
        base = f"http{'s' if load.access.uses_tls else ''}://{load.url}"
        path = f"/v2/models/{load.model}/generate_stream"
        field = "text_output"
    if load.rate_per_s is not None:
        how = ["--request-rate", f"{load.rate_per_s:g}", "--arrival-pattern", load.arrivals]
    else:
        how = ["--concurrency", str(load.num_users)]
    # The template in a file: one on the command line is cut at commas.
    return [
        "profile", "-m", load.model, "--url", base, "--endpoint-type", "template", "--endpoint", path, "--streaming",
        "--extra-inputs", f"payload_template:{folder / 'template.json'}", "--extra-inputs", f"response_field:{field}",
        "--tokenizer", str(load.tokenizer_dir), "--input-file", "input.jsonl", "--custom-dataset-type", "single_turn",
        "--dataset-sampling-strategy", "sequential", "--request-count", str(load.num_requests),
        *(["--warmup-request-count", str(warmup)] if warmup else []), "--random-seed", str(load.seed),
        "--export-level", "raw", "--artifact-dir", "artifacts", "--ui", "none", "--no-gpu-telemetry",
        "--no-server-metrics", *how,
    ]  # fmt: skip


def _said(path: Path, output: str) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as exc:
        raise ServerError(f"aiperf left no figures; it said: {output[-800:]}") from exc
    return said
