# SPDX-License-Identifier: Apache-2.0
"""An evaluation as tables for people: the deciding figures, then every group."""

from collections.abc import Iterator, Sequence

from rich.table import Table

from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.verdict import METRICS, Figure

_PARTS = {
    "Texts, by group": ("perplexity_ratio", "kl"),
    "Answers, by group": ("agreement", "exact_match", "accuracy_drop"),
}
_SHORT = {
    "perplexity_ratio": "ratio",
    "kl": "KL",
    "agreement": "agreed",
    "exact_match": "same answers",
    "accuracy_drop": "lost",
}
_VERDICTS = {True: "passed", False: "FAILED", None: "not judged"}


def tables(evaluation: Evaluation) -> Iterator[Table]:
    """Yield the table of the worst group of each figure; then all groups, texts and answers in tables of their own."""
    yield _worst(evaluation)
    yield from (_groups(evaluation, title, metrics) for title, metrics in _PARTS.items())


def _worst(evaluation: Evaluation) -> Table:
    table = Table(
        title=f"{evaluation.release} against {evaluation.base}: the worst group decides", title_justify="left"
    )
    for column in ("figure", "worst group", "value", "95 % interval", "limit", ""):
        table.add_column(column)
    for figure in evaluation.worst.values():
        verdict = _VERDICTS[figure.passed] + (", not certain" if figure.is_certain is False else "")
        limit = "" if figure.limit is None else _number(figure, figure.limit)
        table.add_row(
            METRICS[figure.metric].title,
            f"{figure.task}, {figure.group}",
            shown(figure),
            interval(figure),
            limit,
            verdict,
        )
    return table


def _groups(evaluation: Evaluation, title: str, metrics: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("task", "group", "items"):
        table.add_column(column, overflow="fold")
    rows: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in evaluation.figures:
        if figure.metric in metrics:
            rows.setdefault((figure.task, figure.group), {})[figure.metric] = figure
    for metric in metrics:
        sides = METRICS[metric].compares
        if sides is not None:
            table.add_column(f"{sides}, base", min_width=6)
            table.add_column("release", min_width=7)
        table.add_column(_SHORT[metric], min_width=len(_SHORT[metric]), overflow="fold")
    for (task, group), figures in rows.items():
        cells = [cell for metric in metrics for cell in _cells(figures.get(metric), metric)]
        table.add_row(task, group, str(max(figure.num_items for figure in figures.values())), *cells)
    return table


def _cells(figure: Figure | None, metric: str) -> Iterator[str]:
    """Yield the cells of a figure; for a comparison, the values of both sides come first."""
    if METRICS[metric].compares is not None:
        for side in (figure.baseline, figure.candidate) if figure is not None else (None, None):
            yield "" if figure is None or side is None else _number(figure, side)
    if figure is None:
        yield ""
        return
    between = f" ({interval(figure)})" if figure.interval else ""
    yield f"{shown(figure)}{between}{' FAILED' if figure.passed is False else ''}"


def shown(figure: Figure) -> str:
    """Return the figure's value in its unit."""
    return _number(figure, figure.value)


def interval(figure: Figure) -> str:
    """Return the ends of the figure's interval; empty: it has none."""
    if figure.interval is None:
        return ""
    low, high = (_number(figure, end) for end in figure.interval)
    return f"{low} to {high}"


def _number(figure: Figure, value: float) -> str:
    match figure.metric:
        case "perplexity_ratio":
            return f"{value:.4f}"
        case "kl":
            return f"{value:.1e}"
        case _:
            return f"{100 * value:.1f} %"
