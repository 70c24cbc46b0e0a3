# SPDX-License-Identifier: Apache-2.0
"""How a load goes, for people: a live line on a terminal, a plain line now and then elsewhere; on standard error."""

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from clients.load.load_options import Load

_PLAIN_S = 10.0


class LoadProgress:
    """Of one load, inside a `with`."""

    def __init__(self, load: Load, *, is_quiet: bool) -> None:
        self._load = load
        self._is_quiet = is_quiet
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._live = Progress(
            *columns, console=self._console, transient=True, disable=is_quiet or not self._console.is_terminal
        )
        self._task = self._live.add_task("preparing", total=None)
        self._next_plain_s = 0.0
        self._begun_s = time.monotonic()
        self._total: int | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def begin(self, num_sessions: int | None) -> None:
        """The first request is about to be sent. Args: `num_sessions`: None: as many as the time takes."""
        self._total = num_sessions
        self._begun_s = time.monotonic()
        self._next_plain_s = self._begun_s + _PLAIN_S

    def tell(self, num_done: int, num_failed: int) -> None:
        """So many requests have ended, so many of them badly."""
        elapsed_s = time.monotonic() - self._begun_s
        text = f"{num_done}{'' if self._total is None else f'/{self._total}'} requests, {num_failed} failed"
        by_time = self._total is None and self._load.duration_s is not None
        completed, total = (elapsed_s, self._load.duration_s) if by_time else (num_done, self._total)
        self._live.update(self._task, description=text, completed=completed, total=total)
        if not self._is_quiet and not self._console.is_terminal and time.monotonic() >= self._next_plain_s:
            self._next_plain_s += _PLAIN_S
            self._console.print(f"{text} after {elapsed_s:.0f} s", markup=False)
