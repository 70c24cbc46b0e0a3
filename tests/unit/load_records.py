# SPDX-License-Identifier: Apache-2.0
"""Runs of a load, made by hand: every time in them is known."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from clients.load.load_record import DONE, LoadRecord
from clients.load.run_folder import Run, RunInfo

MS = 1_000_000


def record(due_ms: float, chunks: Sequence[tuple[float, int]] = (), *, end: str = DONE, **fields: Any) -> LoadRecord:
    """Args: `chunks`: when each came, in ms from the run's start, and its tokens."""
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
    """A run of them; an open loop unless it has users."""
    info = RunInfo(
        tool="by hand", commands=["none"], url="here:1", model="ensemble", is_open=num_users is None,
        num_users=num_users, rate_per_s=None if num_users else 10.0, **fields,
    )  # fmt: skip
    return Run(path=Path(name), info=info, records=records, samples=[])


def steady(
    count: int = 200, *, every_ms: float = 10.0, ttft_ms: float = 50.0, gap_ms: float = 10.0
) -> list[LoadRecord]:
    """One request every so often, each of five tokens."""
    return [
        record(number * every_ms, [(number * every_ms + ttft_ms + gap_ms * token, 1) for token in range(5)])
        for number in range(count)
    ]
