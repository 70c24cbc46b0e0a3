# SPDX-License-Identifier: Apache-2.0
"""The content of a report before it is a page: the runs' figures, their comparison, their knee; and its JSON form."""

import re
from collections.abc import Sequence

import msgspec

from clients.load_report.comparison import Ratio, compare
from clients.load_report.definitions import DEFINITIONS
from clients.load_report.knee import knee_of
from clients.load_report.run_figures import RunFigures, figures_of
from clients.load_report.server_figures import Timeline, timelines
from clients.load_report.slo import Target
from clients.load_run.run_folder import Run, RunInfo, now

_NUM_FAILURES = 8


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that ended badly in one way.

    Attributes:
        end: code of the error.
        error: text of the first of them.
    """

    end: str
    error: str
    count: int


class RunPart(msgspec.Struct, kw_only=True):
    """The part of a report about one run.

    Attributes:
        load: the load in words: ``5 requests/s, poisson``.
        tokens_per_s_per_gpu: output tokens a second for each GPU; None: the number of GPUs is 0, or not known.
        against_first: ratios to the first run; empty for the first one itself.
        failures: the most frequent failures of the whole run.
        warnings: what a reader has to know before any figure.
    """

    info: RunInfo
    load: str
    figures: RunFigures
    timelines: dict[str, Timeline]
    tokens_per_s_per_gpu: float | None
    against_first: list[Ratio]
    failures: list[Failure]
    warnings: list[str]


class Document(msgspec.Struct, kw_only=True):
    """A report."""

    title: str
    date: str
    runs: list[RunPart]
    knee: str | None  # a run's name
    definitions: dict[str, str]


def document_of(runs: Sequence[Run], *, title: str, targets: tuple[Target, ...], num_gpus: int | None) -> Document:
    """Return the report on some runs.

    Args:
        num_gpus: GPUs that served them; None: as many as the server's metrics show.
    """
    figures = [figures_of(run, targets=targets) for run in runs]
    knee = knee_of(figures)
    return Document(
        title=title,
        date=now(),
        runs=[_part(run, found, runs[0], figures[0], num_gpus) for run, found in zip(runs, figures, strict=True)],
        knee=None if knee is None else figures[knee].name,
        definitions=DEFINITIONS,
    )


def _part(run: Run, figures: RunFigures, first: Run, first_figures: RunFigures, num_gpus: int | None) -> RunPart:
    gpus = num_gpus or (figures.server.num_gpus if figures.server else None)
    return RunPart(
        info=run.info,
        load=load_of(run.info),
        figures=figures,
        timelines=timelines(run.samples, run.info.model),
        tokens_per_s_per_gpu=figures.output_tokens.per_s / gpus if gpus else None,
        against_first=[] if run is first else compare(run, figures, first, first_figures),
        failures=_failures(run),
        warnings=_warnings(run, figures),
    )


def _failures(run: Run) -> list[Failure]:
    """Return failures by their text, whatever the numbers in it: each request has others."""
    alike: dict[tuple[str, str], list[str]] = {}
    for record in run.records:
        if not record.is_done:
            alike.setdefault((record.end, re.sub(r"\d+", "0", record.error)), []).append(record.error)
    found = [Failure(end=end, error=errors[0], count=len(errors)) for (end, _), errors in alike.items()]
    return sorted(found, key=lambda one: -one.count)[:_NUM_FAILURES]


def load_of(info: RunInfo) -> str:
    """Return a run's load in words."""
    if info.num_users is not None:
        return f"{info.num_users} user{'s' if info.num_users > 1 else ''}, closed loop"
    if info.rate_per_s is not None:
        return f"{info.rate_per_s:g} requests/s, {info.arrivals or 'open loop'}"
    return "as recorded"


def _warnings(run: Run, figures: RunFigures) -> list[str]:
    found = []
    if figures.client.why_bound:
        found.append(f"Client-bound: {figures.client.why_bound}.")
    if not figures.window.is_steady:
        found.append(f"Not steady: {figures.window.why}.")
    if figures.error_share:
        ended = ", ".join(f"{count} {end}" for end, count in sorted(figures.ends.items()) if end != "done")
        found.append(f"{figures.error_share:.1%} of the measured requests did not end well: {ended}.")
        if said := next((one.error for one in _failures(run) if one.error), ""):
            found.append(f"What failed said most often: {said}")
    if run.info.was_interrupted:
        found.append("Interrupted: what had ended by then is here.")
    if run.info.unended is not None:
        found.append(f"Stopped: {run.info.unended.warning}.")
    if run.info.note:
        found.append(run.info.note)
    if run.metrics_gap:
        found.append(f"{run.metrics_gap}.")
    return found
