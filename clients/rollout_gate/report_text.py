# SPDX-License-Identifier: Apache-2.0
"""The gate's report as a page of Markdown and as a line of JSON."""

from collections.abc import Mapping
from typing import Any

import msgspec

Report = Mapping[str, Any]


def json_text(report: Mapping[str, object]) -> str:
    """Return a report as one line of JSON."""
    return msgspec.json.encode(report).decode()


def markdown(report: Report) -> str:
    """Return a report for people: verdict, reason, one row for each metric, and what is not known."""
    requests = report["requests"]
    lines = [
        f"# {report['verdict']}",
        "",
        report["reason"],
        "",
        f"{requests['candidate']} requests of the candidate, {requests['baseline']} of the baseline.",
        "",
        *metric_table(report),
        "",
        *(f"- guard: {one['name']} over {one['limit']:.0%}" for one in report["guards"] if one["is_over"]),
    ]
    if report["unmeasured"]:
        lines.append(f"Not measured: {', '.join(report['unmeasured'])}.")
    lines += [
        "",
        f"A candidate that is no worse fails with a chance of at most {report['alpha']:.1%}; one that is worse by what "
        f"is too much of a metric passes with at most {report['pass_alpha']:.0%}. The last two columns say how many "
        "requests of the candidate that takes in a typical rollout at this spread.",
        "",
        report["method"],
        "",
    ]
    return "\n".join(lines)


def metric_table(report: Report, *, names: tuple[str, str] = ("candidate", "baseline")) -> list[str]:
    """Return the lines of a table with a row for each metric.

    Args:
        names: the arms' names.
    """
    return [
        f"| metric | {' | '.join(names)} | change | at least | at most | too much | | requests to fail | to pass |",
        "|---|---|---|---|---|---|---|---|---|---|",
        *(_row(row) for row in report["metrics"]),
    ]


def _row(row: Report) -> str:
    state = "worse" if row["is_worse"] else "fine" if row["is_fine"] else "open"
    cells = [
        row["title"],
        _level(row, row["candidate"]),
        _level(row, row["baseline"]),
        *(_change(row, row[key]) for key in ("change", "lower", "upper", "effect")),
        state,
        *("" if row[key] is None else str(row[key]) for key in ("needed_until_fail", "needed_until_pass")),
    ]
    return f"| {' | '.join(cells)} |"


def _level(row: Report, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if row["kind"] == "share" else f"{value:.4g}"


def _change(row: Report, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.3f}" if row["kind"] == "score" else f"{value:+.2%}"
