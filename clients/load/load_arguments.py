# SPDX-License-Identifier: Apache-2.0
"""The options that the commands of `trireme bench` share, and the load that the options make together."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from clients.access import NO_ACCESS, Access, grpc_endpoint, host_of
from clients.load.load_options import Load
from clients.load.openai.openai_stream import is_openai_url
from clients.load.prompts import ProportionalWriter
from clients.load.workload_spec import FixedWorkload, SyntheticWorkload, Workload, constant, read_workload
from clients.load_run.server_samples import read_metrics
from ensemble_configs.render.server_lock import served_ports
from trireme.base.errors import RequestError, SpecError

_OPTION_OF = {"server_name": "--tls-server-name"}
_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")
_LENGTH = 64  # tokens of prompts and answers, where nothing says it

UrlOption = Annotated[
    str,
    typer.Option(
        help="host:port of Triton's gRPC endpoint, or http://HOST:PORT/v1 of an OpenAI-compatible server (its key in "
        "OPENAI_API_KEY); with TLS grpcs://... and https://..."
    ),
]
GrpcUrlOption = Annotated[str, typer.Option(help="host:port of Triton's gRPC endpoint; grpcs://host:port: with TLS.")]
ModelOption = Annotated[str, typer.Option(help="The model to ask, by the server's name.")]
WorkloadOption = Annotated[
    Path | None, typer.Option(help="YAML file of what to ask (docs/benchmarks.md); none: --isl and --osl.")
]
RateOption = Annotated[float | None, typer.Option(help="Requests a second.")]
ConcurrencyOption = Annotated[int | None, typer.Option(min=1, help="Requests at a time.")]
ArrivalsOption = Annotated[str, typer.Option(help="With --rate: poisson or constant.")]
WarmupOption = Annotated[int, typer.Option(min=0, help="Requests before the load, which are not counted.")]
IslOption = Annotated[
    int | None, typer.Option(min=1, help="Prompt tokens of every request.", show_default=str(_LENGTH))
]
OslOption = Annotated[
    int | None, typer.Option(min=1, help="Output tokens of every request.", show_default=str(_LENGTH))
]
TokenizerOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of the model's tokenizer.json, for prompts of exact lengths; none: of nearly that length."
    ),
]
SeedOption = Annotated[int, typer.Option(help="Seed of prompts, lengths and arrivals.")]
TimeoutOption = Annotated[
    float | None,
    typer.Option(help="Seconds after which a request has failed; where it is sent again, of each attempt."),
]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        help="Address of the server's Prometheus metrics; none: not read.",
        show_default="of a Triton that was started in this folder where it has them, else at the port behind --url's",
    ),
]
BinaryOption = Annotated[Path | None, typer.Option(help="Path of the program.", show_default="in .tools, or on PATH")]
OutOption = Annotated[Path, typer.Option(help="Folder for what was found; `trireme bench report` reads it.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object.")]


def chosen_workload(
    path: Path | None, *, isl: int | None, osl: int | None, prompt: str | None = None
) -> dict[str, object]:
    """Return the workload of a file, of fixed lengths, or of one prompt, as JSON data for processes and reports.

    Raises:
        RequestError: two of the options say what to ask.
    """
    given = {"workload": path, "prompt": prompt, "isl": isl, "osl": osl}
    for first, others in (("workload", ("prompt", "isl", "osl")), ("prompt", ("isl",))):
        for other in others:
            if given[first] is not None and given[other] is not None:
                raise RequestError(f"--{first} and --{other} both say what to ask; leave one out", field=other)
    chosen: Workload
    if path is not None:
        chosen = read_workload(path)
    elif prompt is not None:
        chosen = FixedWorkload(kind="fixed", prompts=(prompt,), max_tokens=osl or _LENGTH)
    else:
        chosen = SyntheticWorkload(kind="synthetic", isl=constant(isl or _LENGTH), osl=constant(osl or _LENGTH))
    return chosen.model_dump(mode="json")


def checked(load: Load, tokenizer: Path | None) -> Load:
    """Return a load whose options go together, able to write prompts of a wanted length.

    Triton is asked for the tokens of a word where no tokenizer is given.

    Raises:
        RequestError: the options do not go together, or the server is another one, which could not say.
    """
    load.check()
    if tokenizer is not None:
        return msgspec.structs.replace(load, tokenizer_dir=str(tokenizer.resolve()))
    if load.spec().kind == "fixed":
        return load
    if is_openai_url(load.url):
        raise RequestError(
            "an OpenAI-compatible server does not count tokens beforehand; give --tokenizer DIR for prompts of a "
            "length, or a workload of fixed prompts",
            field="tokenizer",
        )
    writer = ProportionalWriter.ask(load.url, load.model, access=load.access, seed=load.seed)
    return msgspec.structs.replace(load, tokens_per_word=writer.tokens_per_word)


def metrics_url(given: str | None, url: str, access: Access = NO_ACCESS) -> str | None:
    """Return the address of the server's metrics; None: not to be read.

    A given address is read once, before any load.

    Raises:
        RequestError: what is given has none of the metrics that a report shows.
        AccessDenied: it is not trusted, or wants another key; `access` is for a page over https.
    """
    if given is None:
        # An OpenAI-compatible server may have none, and others than ours.
        return None if is_openai_url(url) else f"http://{host_of(url)}:{_metrics_port(url)}/metrics"
    if given.lower() in {"", "none"}:
        return None
    found = given if "://" in given else f"http://{given}/metrics"
    try:
        if urlsplit(found).scheme not in {"http", "https"}:
            raise ValueError("is no http:// or https:// address")  # noqa: TRY301  one message for all
        if not read_metrics(found, access):
            raise ValueError("has no trireme_ or nv_ metrics")  # noqa: TRY301
    except (OSError, ValueError) as exc:
        why = getattr(exc, "reason", exc)  # urllib's errors hold what went wrong
        raise RequestError(
            f"--metrics {given}: {getattr(why, 'strerror', None) or why}; it names a Triton's metrics page, such as "
            "http://localhost:8002/metrics; none: they are not read",
            field="metrics",
            value=given,
        ) from exc
    return found


def _metrics_port(url: str) -> int:
    """Return the metrics port of a server that was started in this folder, else the port behind gRPC's.

    Triton's 8002 is behind its 8001.
    """
    grpc_port = int(grpc_endpoint(url).target.rpartition(":")[2])
    is_here = host_of(url).strip("[]") in _THIS_MACHINE
    known = [ports for ports in served_ports(Path("build")) if ports.grpc_port == grpc_port] if is_here else []
    return known[0].metrics_port if len(known) == 1 else grpc_port + 1


def tokenizer_folder(path: Path) -> Path:
    """Return the whole path of a tokenizer's folder; a SpecError is raised where it is none."""
    if not path.is_dir():
        raise SpecError(f"{path} is no folder; --tokenizer names one with a tokenizer.json", field="tokenizer")
    return path.resolve()


def refuse_openai_url(url: str, tool: str) -> None:
    """Raise a RequestError where the address is OpenAI-compatible: the tool asks Triton alone, over gRPC."""
    if is_openai_url(url):
        raise RequestError(
            f"{tool} asks Triton over gRPC: --url is host:port, such as localhost:8001, got {url!r}; `trireme bench "
            "run`, `locust` and `capacity` ask OpenAI-compatible servers",
            field="url",
            value=url,
        )


def refuse_access(access: Access, tool: str, *, fields: Mapping[str, str]) -> None:
    """Raise a RequestError where `access` has what a tool cannot do.

    Args:
        fields: names of such fields of `access`, each with the reason.
    """
    for field, why in fields.items():
        if getattr(access, field) is not None:
            option = _OPTION_OF.get(field, f"--{field.replace('_', '-')}")
            raise RequestError(
                f"{tool} cannot take {option}: {why}; leave it out, or put the load on with `trireme bench run` or "
                "`locust`",
                field=field,
            )


def refuse_what_only_ours_plays(load: Load, tool: str) -> None:
    """Raise a RequestError for a load that a tool with requests given beforehand cannot put on."""
    if load.arrivals not in ("poisson", "constant"):
        raise RequestError(
            f"{tool} knows --arrivals poisson and constant, got {load.arrivals!r}; `trireme bench run` knows more",
            field="arrivals",
            value=load.arrivals,
        )
    if load.spec().kind in {"conversation", "trace"}:
        raise RequestError(
            f"{tool} cannot play a {load.spec().kind}: its requests do not wait for answers or for moments of their "
            "own; `trireme bench run` can",
            field="workload",
        )
