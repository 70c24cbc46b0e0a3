# SPDX-License-Identifier: Apache-2.0
"""The progress of a load for people, on standard error: a live line on a terminal, else a plain line now and then."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from clients.load.load_options import Load
from clients.load_run.load_record import LoadRecord

_PLAIN_S = 10.0


class LoadProgress:
    """The progress of one load, inside a `with`."""

    def __init__(self, load: Load, *, is_quiet: bool) -> None:
        self._load = load
        self._is_quiet = is_quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._live = Progress(
            *columns, console=self._console, transient=True, disable=is_quiet or not self._console.is_terminal
        )
        self._task = self._live.add_task("preparing", total=None)
        self._begun_s = time.monotonic()
        self._next_plain_s = self._begun_s + _PLAIN_S
        self._total: int | None = None
        self._num_done = self._num_failed = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def plan(self, num_sessions: int) -> None:
        """Show how many sessions are planned, while none is asked yet."""
        text = f"preparing: {num_sessions} requests planned"
        self._live.update(self._task, description=text)
        self._print(text)

    def begin(self, num_sessions: int | None) -> None:
        """Count from now on: the first request is about to be sent.

        Args:
            num_sessions: None: as many as the time takes.
        """
        self._total = num_sessions
        self._begun_s = time.monotonic()
        self._next_plain_s = self._begun_s + _PLAIN_S

    def tell(self, records: list[LoadRecord]) -> None:
        """Add requests that have ended."""
        self._num_done += len(records)
        self._num_failed += sum(not record.is_done for record in records)
        elapsed_s = time.monotonic() - self._begun_s
        total_text = "" if self._total is None else f"/{self._total}"
        text = f"{self._num_done}{total_text} requests, {self._num_failed} failed"
        by_time = self._total is None and self._load.duration_s is not None
        completed, total = (elapsed_s, self._load.duration_s) if by_time else (self._num_done, self._total)
        self._live.update(self._task, description=text, completed=completed, total=total)
        self._print(text)

    def _print(self, text: str) -> None:
        """Print a plain line now and then, where no line is live."""
        if not self._is_quiet and not self._console.is_terminal and time.monotonic() >= self._next_plain_s:
            self._next_plain_s += _PLAIN_S
            self._console.print(f"{text} after {time.monotonic() - self._begun_s:.0f} s", markup=False)
