# SPDX-License-Identifier: Apache-2.0
"""An evaluation as tables for people: what decides, then every group."""

from collections.abc import Iterator

from rich.table import Table

from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.verdict import METRICS, Figure

_VERDICTS = {True: "passed", False: "FAILED", None: "not judged"}


def tables(evaluation: Evaluation) -> Iterator[Table]:
    """The worst group of each figure, and all groups."""
    yield _worst(evaluation)
    yield _groups(evaluation)


def _worst(evaluation: Evaluation) -> Table:
    table = Table(
        title=f"{evaluation.release} against {evaluation.base}: the worst group decides", title_justify="left"
    )
    for column in ("figure", "worst group", "value", "95 % interval", "limit", ""):
        table.add_column(column)
    for figure in evaluation.worst.values():
        verdict = _VERDICTS[figure.passed] + (", not certain" if figure.is_certain is False else "")
        limit = "" if figure.limit is None else f"{figure.limit:g}"
        table.add_row(
            METRICS[figure.metric].title,
            f"{figure.task}, {figure.group}",
            shown(figure),
            interval(figure),
            limit,
            verdict,
        )
    return table


def _groups(evaluation: Evaluation) -> Table:
    table = Table(title="All groups; an interval is of 95 %", title_justify="left")
    for column in ("task", "group", "items", "perplexity", "KL", "tokens agreed", "same answers", "accuracy"):
        table.add_column(column)
    rows: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in evaluation.figures:
        rows.setdefault((figure.task, figure.group), {})[figure.metric] = figure
    for (task, group), figures in rows.items():
        count = max(figure.num_items for figure in figures.values())
        cells = [_cell(figures.get(metric)) for metric in METRICS]  # in the order of the columns
        table.add_row(task, group, str(count), *cells)
    return table


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return ""
    failed = " FAILED" if figure.passed is False else ""
    if figure.candidate is not None and figure.baseline is not None:
        return f"{_number(figure, figure.baseline)} → {_number(figure, figure.candidate)}{failed}"
    return f"{shown(figure)} {interval(figure)}{failed}"


def shown(figure: Figure) -> str:
    """The value in its unit."""
    return _number(figure, figure.value)


def interval(figure: Figure) -> str:
    """From, to."""
    if figure.interval is None:
        return ""
    low, high = (_number(figure, end) for end in figure.interval)
    return f"{low} to {high}"


def _number(figure: Figure, value: float) -> str:
    match figure.metric:
        case "perplexity_ratio":
            return f"{value:.4f}"
        case "kl":
            return f"{value:.5f}"
        case _:
            return f"{100 * value:.1f} %"
