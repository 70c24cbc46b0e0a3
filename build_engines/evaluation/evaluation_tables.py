# SPDX-License-Identifier: Apache-2.0
"""An evaluation as tables for people: the deciding figures, then every group."""

from collections.abc import Iterator, Sequence

from build_engines.evaluation.evaluation import Evaluation
from build_engines.evaluation.verdict import METRICS, Figure
from trireme.base.text_tables import TextTable

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


def tables(evaluation: Evaluation) -> Iterator[TextTable]:
    """Yield the table of the worst group of each figure; then all groups, texts and answers in tables of their own."""
    yield _worst(evaluation)
    yield from (_groups(evaluation, title, metrics) for title, metrics in _PARTS.items())


def _worst(evaluation: Evaluation) -> TextTable:
    rows = tuple(
        (
            METRICS[figure.metric].title, f"{figure.task}, {figure.group}", _number(figure, figure.value),
            _interval(figure), "" if figure.limit is None else _number(figure, figure.limit),
            _VERDICTS[figure.passed] + (", not certain" if figure.is_certain is False else ""),
        )
        for figure in evaluation.worst.values()
    )  # fmt: skip
    headers = ("figure", "worst group", "value", "95 % interval", "limit", "")
    title = f"{evaluation.release} against {evaluation.base}: the worst group decides"
    return TextTable(title, headers, rows, left=headers)


def _groups(evaluation: Evaluation, title: str, metrics: Sequence[str]) -> TextTable:
    groups: dict[tuple[str, str], dict[str, Figure]] = {}
    for figure in evaluation.figures:
        if figure.metric in metrics:
            groups.setdefault((figure.task, figure.group), {})[figure.metric] = figure
    headers = ["task", "group", "items"]
    for metric in metrics:
        sides = METRICS[metric].compares
        headers += [] if sides is None else [f"{sides}, base", "release"]
        headers.append(_SHORT[metric])
    rows = tuple(
        (task, group, str(max(figure.num_items for figure in figures.values())),
         *(cell for metric in metrics for cell in _cells(figures.get(metric), metric)))
        for (task, group), figures in groups.items()
    )  # fmt: skip
    return TextTable(title, tuple(headers), rows, left=tuple(headers))


def _cells(figure: Figure | None, metric: str) -> Iterator[str]:
    """Yield the cells of a figure; for a comparison, the values of both sides come first."""
    if METRICS[metric].compares is not None:
        for side in (figure.baseline, figure.candidate) if figure is not None else (None, None):
            yield "" if figure is None or side is None else _number(figure, side)
    if figure is None:
        yield ""
        return
    between = f" ({_interval(figure)})" if figure.interval else ""
    yield f"{_number(figure, figure.value)}{between}{' FAILED' if figure.passed is False else ''}"


def _interval(figure: Figure) -> str:
    """Return the ends of the figure's interval; empty: it has none."""
    return " to ".join(_number(figure, end) for end in figure.interval or ())


def _number(figure: Figure, value: float) -> str:
    match figure.metric:
        case "perplexity_ratio":
            return f"{value:.4f}"
        case "kl":
            return f"{value:.1e}"
        case _:
            return f"{100 * value:.1f} %"
