# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench genai-perf`: NVIDIA's genai-perf, where it is installed, as the run of any tool.

It makes its own prompts and drives perf_analyzer, whose export the figures are computed from; what it says itself
counts the tokens of the answers' text anew, and stands beside them.
"""

import json
import shlex
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from clients.access import Access, grpc_endpoint
from clients.access_options import with_access
from clients.load import load_arguments as options
from clients.load.load_options import Load
from clients.load.run_origin import run_info
from clients.load.tools.perf_analyzer import HOW_TO_INSTALL, NO_PLACE_FOR, PLACE, records_of, tls_options
from clients.load.tools.tool_run import find_tool, keep_run, run_tool
from clients.load_report.summary import print_summary
from clients.load_run.run_folder import refuse_used
from trireme.base.errors import ServerError

_SHOWN = (
    "time_to_first_token",
    "inter_token_latency",
    "request_latency",
    "output_token_throughput",
    "request_throughput",
    "output_sequence_length",
    "input_sequence_length",
)
_NOTE = (
    "genai-perf made the prompts, and counts the tokens of the answers' text anew where it speaks for itself; the "
    "figures above are of the tokens that the server counted, from perf_analyzer's export."
)


@with_access
def genai_perf(
    *,
    out: options.OutOption,
    tokenizer: Annotated[Path, typer.Option(help="Folder of the tokenizer by which genai-perf counts tokens.")],
    url: options.GrpcUrlOption = "localhost:8001",
    model: options.ModelOption = "ensemble",
    rate: options.RateOption = None,
    concurrency: options.ConcurrencyOption = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests in all.")] = 100,
    isl: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 64,
    osl: Annotated[int, typer.Option(min=1, help="Output tokens.")] = 64,
    seed: options.SeedOption = 1,
    metrics: options.MetricsOption = None,
    binary: options.BinaryOption = None,
    is_json: options.JsonOption = False,
    access: Access,
) -> None:
    """Put a load on a running server with NVIDIA's genai-perf and keep every request of it.

    \b
    Examples:
      trireme bench genai-perf --concurrency 16 --requests 100 --tokenizer /models/mine --out runs/genai-16
    """
    refuse_used(out)
    options.refuse_openai_url(url, "genai-perf")
    options.refuse_access(access, "genai-perf", fields=NO_PLACE_FOR)
    target, access = grpc_endpoint(url, access)
    load = Load(
        url=url, access=access, model=model, workload=options.chosen_workload(None, isl=isl, osl=osl),
        rate_per_s=rate, num_users=concurrency, num_requests=requests, seed=seed,
    )  # fmt: skip
    load.check()
    program = find_tool("genai-perf", "genai-perf/bin/genai-perf", given=binary, how=HOW_TO_INSTALL)
    beside = find_tool("perf_analyzer", PLACE, given=None, how=HOW_TO_INSTALL).parent
    metrics, tokenizer = options.metrics_url(metrics, url, access), options.tokenizer_folder(tokenizer)
    how = ["--concurrency", str(concurrency)] if concurrency is not None else ["--request-rate", f"{rate:g}"]
    command = [
        str(program), "profile", "-m", model, "--backend", "tensorrtllm", "--endpoint-type", "kserve", "--streaming",
        "-u", target, "--tokenizer", str(tokenizer), "--synthetic-input-tokens-mean", str(isl),
        "--output-tokens-mean", str(osl), "--output-tokens-mean-deterministic", "--random-seed", str(seed),
        "--request-count", str(requests), "--extra-inputs", "return_num_output_tokens:true",
        "--extra-inputs", "return_num_input_tokens:true", "--artifact-dir", "artifacts", *how,
        *(["--", *tls_options(access)] if access.uses_tls else []),  # what follows is perf_analyzer's
    ]  # fmt: skip
    info = run_info(load, tool="genai-perf")
    info.commands.append(shlex.join(command))
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as name:
        folder = Path(name)
        env = {"PATH": f"{beside}:/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        found = run_tool(command, cwd=folder, env=env, metrics=metrics, access=access, what="genai-perf")
        exported = _read(folder, "profile_export.json", found.output)
        said = _read(folder, "profile_export_genai_perf.json", found.output)
    info.tool_says, info.lengths, info.note = said_figures(said), "genai-perf's own", _NOTE
    print_summary(keep_run(out, info, found, records_of(exported, found.start_epoch_ns, [])), is_json=is_json)


def _read(folder: Path, name: str, output: str) -> dict[str, Any]:
    paths = sorted((folder / "artifacts").rglob(name))
    if not paths:
        raise ServerError(f"genai-perf left no {name}; it said: {output[-800:]}")
    document: dict[str, Any] = json.loads(paths[0].read_text())
    return document


def said_figures(said: dict[str, Any]) -> dict[str, str]:
    """Return means, and percentiles where they are, of what genai-perf, or aiperf after it, says itself."""
    found = {}
    for name in _SHOWN:
        value = said.get(name)
        if isinstance(value, dict):
            shown = [f"{key} {value[key]:.2f}" for key in ("avg", "p50", "p99") if key in value]
            found[name] = f"{', '.join(shown)} {value.get('unit', '')}".strip()
    return found
