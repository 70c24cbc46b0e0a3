# SPDX-License-Identifier: Apache-2.0
"""Runs of a load, made by hand: every time in them is known."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from clients.load_report.run_figures import RunFigures
from clients.load_run.load_record import DONE, LoadRecord
from clients.load_run.run_folder import Run, RunInfo

MS = 1_000_000


def record(due_ms: float, chunks: Sequence[tuple[float, int]] = (), *, end: str = DONE, **fields: Any) -> LoadRecord:
    """Return the record of a request.

    Args:
        due_ms: when it was due, in ms from the run's start.
        chunks: when each came, in ms from the run's start, and its tokens.
    """
    last_ms = chunks[-1][0] if chunks else due_ms
    defaults: dict[str, Any] = {
        "session": 0,
        "due_ns": round(due_ms * MS),
        "sent_ns": round(due_ms * MS),
        "end_ns": round(last_ms * MS),
        "end": end,
        "times_ns": [round(at * MS) for at, _ in chunks],
        "tokens": [count for _, count in chunks],
    }
    return LoadRecord(**{**defaults, **fields})


def run(records: list[LoadRecord], *, num_users: int | None = None, name: str = "run", **fields: Any) -> Run:
    """Return a run of records; an open loop unless it has users."""
    info = RunInfo(
        tool="by hand", commands=["none"], url="here:1", model="ensemble", is_open=num_users is None,
        num_users=num_users, rate_per_s=None if num_users else 10.0, **fields,
    )  # fmt: skip
    return Run(path=Path(name), info=info, records=records, samples=[])


def steady(
    count: int = 200, *, every_ms: float = 10.0, ttft_ms: float = 50.0, gap_ms: float = 10.0
) -> list[LoadRecord]:
    """Return records of a request every `every_ms`, each of five tokens."""
    return [
        record(number * every_ms, [(number * every_ms + ttft_ms + gap_ms * token, 1) for token in range(5)])
        for number in range(count)
    ]


def farthest_from_stamps(figures: RunFigures, records: Sequence[LoadRecord], sent_ns: Sequence[Sequence[int]]) -> float:
    """Return how far the worst figure is, as a share, from the server's own stamps of the tokens of the requests.

    A server on a busy machine is late itself: its script says less of what a client should have seen than its stamps.
    """
    by_first = zip(
        sorted(records, key=lambda one: one.times_ns[0]), sorted(sent_ns, key=lambda one: one[0]), strict=True
    )
    measured = [stamps for record, stamps in by_first if figures.window.holds(record.due_ns)]
    gaps_ms = [(late - early) / MS for one in measured for early, late in pairwise(one)]
    tpots_ms = [(one[-1] - one[0]) / MS / (len(one) - 1) for one in measured]
    itl, tpot = figures.latencies["itl"], figures.latencies["tpot"]
    assert (itl.count, tpot.count) == (len(gaps_ms), len(tpots_ms))
    return max(
        abs(figure / known - 1)
        for figure, known in (
            (itl.percentiles["50"], statistics.median(gaps_ms)),
            (itl.mean, statistics.mean(gaps_ms)),
            (tpot.percentiles["50"], statistics.median(tpots_ms)),
            (tpot.mean, statistics.mean(tpots_ms)),
        )
    )
