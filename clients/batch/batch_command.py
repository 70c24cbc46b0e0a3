# SPDX-License-Identifier: Apache-2.0
"""The command `trireme batch run`: a file of OpenAI batch lines to a running server, their results to another file."""

import asyncio
import contextlib
import functools
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clients.access import Access
from clients.access_options import with_access
from clients.batch.batch_line import asked_by
from clients.batch.input_file import InputFile
from clients.batch.job import BatchJob, Tally
from clients.batch.progress import JobProgress
from clients.batch.results_file import ResultsFile
from clients.batch.server_probe import check_server
from clients.infer_messages import GenerateRequest
from clients.streaming import AsyncTritonClient
from trireme.base.errors import SpecError

BATCH = 3  # Triton's number of the class
# A server with admission refuses what would wait longer. Well below `admission.queue.ageing_s` (30 s by default), from
# which on a batch request counts for more than its class; and long enough that seats which fall free are taken at once.
QUEUE_TIMEOUT_MS = 10_000


class JobReport(Tally, kw_only=True):
    """The object that `--json` prints: tokens and seconds are of this run, lines of the job."""

    duration_s: float
    tokens_per_s: float


@with_access
def run(
    source: Annotated[Path, typer.Argument(metavar="IN", help="File of requests: OpenAI batch lines (JSONL).")],
    *,
    out: Annotated[
        Path, typer.Option(help="File of results, a line for each request; a file of an earlier run is gone on with.")
    ],
    url: Annotated[str, typer.Option(help="host:port of Triton's gRPC endpoint; grpcs://host:port: with TLS.")] = (
        "localhost:8001"
    ),
    model: Annotated[str, typer.Option(help="Model to ask, by Triton's name.")] = "ensemble",
    served_model: Annotated[
        str | None, typer.Option(help="Lines whose body names another model fail. Without it any name is taken.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Tenant of the job; for a server with admission.")] = None,
    without_admission: Annotated[
        bool,
        typer.Option("--without-admission", help="Send no class, for a server without classes that nobody else uses."),
    ] = False,
    max_in_flight: Annotated[
        int, typer.Option(min=1, max=4096, help="Most requests in flight; below it the server's answers decide.")
    ] = 256,
    chat_max_tokens: Annotated[
        int, typer.Option(min=1, help="Most tokens of chat lines without a limit of their own.")
    ] = 512,
    line_timeout_s: Annotated[
        float, typer.Option(min=1.0, help="Longest time of one request; then it is tried again.")
    ] = 3600.0,
    patience_s: Annotated[
        float, typer.Option(min=0.0, help="Stop when no line had an answer for this time: the server is away, or full.")
    ] = 3600.0,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object on standard output at the end.")
    ] = False,
    access: Access,
) -> None:
    """Answer a file of requests at batch priority, beside interactive requests.

    Every line of IN has exactly one line in OUT, in the order of completion: an answer, or an error that names the
    field. Run the same command again after Ctrl-C, a crash or a kill: it goes on where it was. How many requests are
    in flight follows from what the server refuses.

    \b
    Examples:
      trireme batch run requests.jsonl --out results.jsonl
      trireme batch run requests.jsonl --out results.jsonl --tenant research
      trireme batch run requests.jsonl --out results.jsonl --without-admission --max-in-flight 32 --json
      trireme batch run requests.jsonl --out results.jsonl --url grpcs://llm.example:443 --token-file key.txt

    \b
    Exit codes: 0 every line has an answer; 1 some failed, or the server was away too long; 2 the command, a file,
    the address, a certificate or the key is wrong; 130 Ctrl-C.
    """
    base = GenerateRequest(
        max_tokens=1,
        stream=False,  # a response for each token would cost the server more than the answer
        exclude_input_in_output=True,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        return_finish_reason=True,
        priority=None if without_admission else BATCH,
        queue_timeout_ms=None if without_admission else QUEUE_TIMEOUT_MS,
        tenant=tenant,
    )
    ask_of = functools.partial(asked_by, base=base, chat_tokens=chat_max_tokens, served_model=served_model)
    _refuse_one_file(source, out)
    with InputFile(source) as requests:
        requests.scan()
        with ResultsFile(out, input_sha256=requests.sha256, last_line=requests.last_line) as results:
            _tell_what_is_resumed(requests, results)

            async def answer() -> JobReport:
                async with AsyncTritonClient(url, access=access) as client:
                    job = BatchJob(
                        client, requests, results, ask_of=ask_of, model=model, ceiling=max_in_flight,
                        line_timeout_s=line_timeout_s, patience_s=patience_s,
                    )  # fmt: skip
                    if results.num_done < requests.num_requests:
                        await check_server(client, base, model=model)
                    return await _run_shown(job)

            try:
                report = asyncio.run(answer())
            except KeyboardInterrupt:
                typer.echo(f"stopped with {results.num_done} of {requests.num_requests} lines done; run the same "
                           "command again to go on", err=True)  # fmt: skip
                raise
    if is_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        typer.echo(_in_words(report, out), err=True)
    if report.failed:
        raise typer.Exit(1)


async def _run_shown(job: BatchJob) -> JobReport:
    progress = JobProgress(job.tally)
    showing = asyncio.create_task(progress.show())
    try:
        await job.run()
    finally:
        showing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await showing
    tally, elapsed_s = job.tally, progress.elapsed_s
    tokens_per_s = (tally.prompt_tokens + tally.completion_tokens) / max(elapsed_s, 1e-3)
    return JobReport(
        **msgspec.structs.asdict(tally), duration_s=round(elapsed_s, 3), tokens_per_s=round(tokens_per_s, 1)
    )


def _refuse_one_file(source: Path, out: Path) -> None:
    if out.exists() and source.exists() and out.samefile(source):
        raise SpecError(f"--out {out} is the input itself; name another file", file=out)


def _tell_what_is_resumed(requests: InputFile, results: ResultsFile) -> None:
    if results.num_cut_bytes:
        typer.echo(f"{results.path}: a line that was half written ({results.num_cut_bytes} bytes) is cut", err=True)
    if results.num_done:
        failed = f", {results.num_failed} of them failed" if results.num_failed else ""
        typer.echo(f"going on: {results.num_done} of {requests.num_requests} lines are done{failed}", err=True)


def _in_words(report: JobReport, out: Path) -> str:
    words = (
        f"{report.done} lines in {out}, {report.failed} failed; {report.prompt_tokens} tokens read and "
        f"{report.completion_tokens} made in {report.duration_s:.1f} s"
    )
    if report.failed:
        words += "\nfailed lines have their results and are not asked again; for another try give them another --out"
    if report.shortened:
        words += (
            f"\n{report.shortened} answers are shorter than asked for, with finish_reason length: the server caps "
            "those of batch requests under load (admission.ladder)"
        )
    return words
