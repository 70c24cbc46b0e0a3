# SPDX-License-Identifier: Apache-2.0
"""The command `trireme generate`: one prompt to a running server, its text on standard output as it is made."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clients.access import Access
from clients.access_options import with_access
from clients.commands.shown_text import streamed_or_whole, write
from clients.infer_messages import PINNING_MODEL
from clients.latency import Arrival, MetricUndefined, RequestRecord, e2e_ms, tpot_ms, ttft_ms
from clients.rollout.routing.routed_client import generate_routed
from clients.streaming import GenerateChunk, GenerateRequest, TritonClient
from clients.tls_context import check_access
from trireme.base.errors import RequestError, ServingError


class GenerateReport(msgspec.Struct, frozen=True):
    """The object that `--json` prints; null where the server does not say or the metric is undefined."""

    text: str
    finish_reason: str | None
    num_input_tokens: int | None
    num_output_tokens: int | None
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float | None


@with_access
def generate(
    prompt: Annotated[str, typer.Argument(help="Prompt; - reads it from standard input, less one newline at its end.")],
    *,
    url: Annotated[str, typer.Option(help="host:port of Triton's gRPC endpoint; grpcs://host:port: with TLS.")] = (
        "localhost:8001"
    ),
    model: Annotated[
        str | None, typer.Option(help="The model to ask.", show_default="ensemble; with --release tensorrt_llm_bls")
    ] = None,
    release: Annotated[int | None, typer.Option(help="Release that answers, of those that the server holds.")] = None,
    split_url: Annotated[
        str | None,
        typer.Option(help="Address of a rollout, which says which release answers, such as http://localhost:8010."),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="With --split-url: name of the user or session, which stays with one release.")
    ] = None,
    split_ca_file: Annotated[
        Path | None,
        typer.Option(
            help="With --split-url: PEM file of the authorities to trust there.", show_default="as for the server"
        ),
    ] = None,
    split_token_file: Annotated[
        Path | None,
        typer.Option(help="With --split-url: file with the rollout's key.", show_default="as for the server"),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens to make.")] = 128,
    temperature: Annotated[
        float | None,
        typer.Option(help="Sample at this temperature; with neither --top-p nor --top-k it sends top_p=1.0 as well."),
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Sample from the likeliest tokens of this probability.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from this many likeliest tokens.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling: one seed samples one text.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text; may be given again.")] = None,
    adapter: Annotated[str | None, typer.Option(help="Answer with this LoRA adapter of the deployment.")] = None,
    is_chat: Annotated[
        bool, typer.Option("--chat", help="Ask as a user in a chat: the server applies the model's chat template.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system message.")] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Give up after this many seconds.")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end instead of text.")] = False,
    access: Access,
) -> None:
    """Ask a running server for text, shown as it is made; at its end where the deployment is unary (decoupled: false).

    Without --temperature, --top-p or --top-k the answer is greedy: always the likeliest token. Ctrl-C, or a reader
    that goes away, cancels the request on the server.

    \b
    Examples:
      trireme generate "Once upon a time" --max-tokens 64
      trireme generate "A haiku:" --temperature 0.8 --seed 7 --stop END
      trireme generate - --json < prompt.txt
      trireme generate "What is the capital of France?" --chat
      trireme generate "Once upon a time" --split-url http://localhost:8010 --key user-7
      trireme generate "Once upon a time" --split-url https://localhost:8010 --split-ca-file ca.crt \\
          --split-token-file key.txt
      trireme generate "Once upon a time" --url grpcs://llm.example:443 --ca-file ca.crt --token-file key.txt

    \b
    Exit codes: 0 done; 1 the server failed; 2 the request, the address or the key is wrong, or no server
    answers; 130 Ctrl-C.
    """
    is_unbounded = temperature is not None and top_p is None and top_k is None
    text = _read_stdin() if prompt == "-" else prompt
    if system is not None and not is_chat:
        raise RequestError("--system is for --chat; add it, or put the words into the prompt", field="system")
    if "" in (stop or ()):
        raise RequestError("--stop is empty, which stops nothing; name a text, or leave it out", field="stop")
    request = GenerateRequest(
        text_input=None if is_chat else text,
        messages=_conversation(system, text) if is_chat else None,
        max_tokens=max_tokens,
        stream=True,
        exclude_input_in_output=True,
        stop_words=tuple(stop or ()),
        temperature=temperature,
        top_k=top_k,
        top_p=1.0 if is_unbounded else top_p,  # the contract's default is greedy, whatever the temperature
        seed=seed,
        lora_name=adapter,
        return_num_input_tokens=True,
        return_num_output_tokens=True,
        return_finish_reason=True,
    )
    _refuse_two_ways(model, release, split_url, key)
    split_access = _split_access(split_url, split_ca_file, split_token_file)
    with contextlib.ExitStack() as held:
        if split_url is not None:
            ask = partial(
                generate_routed, url, split_url, key=key, access=access, split_access=split_access, timeout_s=timeout_s
            )
        else:
            client = held.enter_context(TritonClient(url, access=access))
            chosen = model or (PINNING_MODEL if release is not None else "ensemble")
            ask = partial(client.generate, model=chosen, release=release, timeout_s=timeout_s)
        answer = streamed_or_whole(ask, request)
        sent_ns = time.monotonic_ns()  # at the first chunk that is asked for, right after
        chunks = held.enter_context(contextlib.closing(answer))
        if is_json:
            write(msgspec.json.encode(measure(chunks, sent_ns=sent_ns)).decode() + "\n")
        elif _show(chunks) == "length" and sys.stderr.isatty():
            typer.secho(f"(cut at the token limit: --max-tokens {max_tokens}, or the model's)", err=True, dim=True)


def _conversation(system: str | None, text: str) -> list[dict[str, object]]:
    said = [("system", system), ("user", text)]
    return [{"role": role, "content": content} for role, content in said if content is not None]


def _split_access(split_url: str | None, ca_file: Path | None, token_file: Path | None) -> Access | None:
    """Return the access to the rollout; None: that to the server."""
    names = {"split_ca_file": ca_file, "split_token_file": token_file}
    given = next((name for name, path in names.items() if path is not None), None)
    if given is None:
        return None
    if split_url is None:
        raise RequestError(f"--{given.replace('_', '-')} is for --split-url; give that, or leave it out", field=given)
    found = Access(ca_file=_named(ca_file), token_file=_named(token_file))
    check_access(found)
    return found


def _named(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _refuse_two_ways(model: str | None, release: int | None, split_url: str | None, key: str | None) -> None:
    """Raise a RequestError where the command line names what a rollout is to choose, or a key without one."""
    if split_url is not None and (model is not None or release is not None):
        named = "--model" if model is not None else "--release"
        raise RequestError(f"--split-url asks the rollout which release answers; leave {named} out", field="split_url")
    if key is not None and split_url is None:
        raise RequestError("--key is for --split-url; name where the rollout answers, or leave it out", field="key")


def measure(chunks: Iterable[GenerateChunk], *, sent_ns: int) -> GenerateReport:
    """Read a stream to its end; `sent_ns` is the monotonic clock when the request was sent."""
    received = list(chunks)
    counts = [chunk.num_output_tokens for chunk in received if chunk.num_output_tokens is not None]
    arrivals = (Arrival(chunk.received_ns, chunk.num_output_tokens or 0) for chunk in received)
    record = RequestRecord(sent_ns, tuple(arrivals))
    return GenerateReport(
        text="".join(chunk.text for chunk in received),
        finish_reason=next((chunk.finish_reason for chunk in reversed(received) if chunk.finish_reason), None),
        num_input_tokens=next((n for chunk in received if (n := chunk.num_input_tokens) is not None), None),
        num_output_tokens=sum(counts) if counts else None,
        ttft_ms=_defined(ttft_ms, record),
        tpot_ms=_defined(tpot_ms, record),
        e2e_ms=_defined(e2e_ms, record),
    )


def _defined(metric: Callable[[RequestRecord], float], record: RequestRecord) -> float | None:
    try:
        return round(metric(record), 3)
    except MetricUndefined:
        return None


def _show(chunks: Iterable[GenerateChunk]) -> str | None:
    """Write the text as it comes; returns the finish reason."""
    finish_reason, is_line_open = None, False
    try:
        for chunk in chunks:
            write(chunk.text)
            is_line_open = is_line_open or bool(chunk.text)
            finish_reason = chunk.finish_reason or finish_reason
    except (ServingError, KeyboardInterrupt):
        write("\n" if is_line_open else "")  # what is said about it starts on a line of its own
        raise
    write("\n")
    return finish_reason


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as exc:
        raise RequestError("the prompt on standard input must be UTF-8", field="text_input") from exc
