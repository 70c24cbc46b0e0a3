# SPDX-License-Identifier: Apache-2.0
"""The command `trireme bench report`: what runs found, as a page or as data."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from clients.load_report.document import document_of
from clients.load_report.page import html_page, markdown_page
from clients.load_report.slo import parse_targets
from clients.load_run.run_folder import Run, read_run
from trireme.base.errors import RequestError

_FORMS = (".html", ".md", ".json")


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs; the first is the baseline.")],
    *,
    out: Annotated[
        list[Path] | None,
        typer.Option(help="File to write: .html, .md or .json; may be given again.", show_default="JSON"),
    ] = None,
    slo: Annotated[
        str | None, typer.Option(help="Targets of each request, in ms, for goodput: ttft=500,tpot=50,e2e=10000.")
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "Benchmark",
    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs that served the runs.", show_default="as the server's metrics show")
    ] = None,
    no_plots: Annotated[bool, typer.Option("--no-plots", help="Leave pictures out of the page.")] = False,
) -> None:
    """Say what runs found: percentiles with intervals, throughput, goodput, the server, and how they compare.

    The HTML page is one file that loads nothing, and can be read without colour.

    \b
    Examples:
      trireme bench report runs/rate-5 --out report.html
      trireme bench report runs/* --slo ttft=500,tpot=50 --out report.html --out report.md
      trireme bench report before after | jq '.runs[1].against_first'
    """
    for path in out or ():
        if path.suffix not in _FORMS:
            raise RequestError(f"--out must end with {', '.join(_FORMS)}, got {path}", field="out", value=str(path))
    found = _named(runs)
    targets = parse_targets(slo, of_percentiles=False) if slo else ()
    document = document_of(found, title=title, targets=targets, num_gpus=gpus)
    as_json = msgspec.json.format(msgspec.json.encode(document), indent=1).decode() + "\n"
    for path in out or ():
        match path.suffix:
            case ".html":
                text = html_page(document, found, has_plots=not no_plots)
            case ".md":
                text = markdown_page(document)
            case _:
                text = as_json
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}", err=True)
    if not out:
        typer.echo(as_json, nl=False)


def _named(paths: list[Path]) -> list[Run]:
    """Read the runs; those with equal folder names get their parents' names in front."""
    names = [path.resolve().name for path in paths]
    found = []
    for path, name in zip(paths, names, strict=True):
        run = read_run(path)
        run.name = f"{path.resolve().parent.name}/{name}" if names.count(name) > 1 else name
        found.append(run)
    return found
