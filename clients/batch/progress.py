# SPDX-License-Identifier: Apache-2.0
"""The progress of a job for people, on standard error: a live line on a terminal, else a plain line now and then."""

import asyncio
import datetime
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from clients.batch.job import Tally

_LIVE_S, _PLAIN_S = 0.5, 10.0


class JobProgress:
    """The progress of one run; construct it when the first line is about to be sent."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._began_s = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Return the seconds since the run began."""
        return time.monotonic() - self._began_s

    async def show(self) -> None:
        """Show the progress until cancelled."""
        if not self._console.is_terminal:
            while True:
                await asyncio.sleep(_PLAIN_S)
                self._console.print(f"{self._tally.done}/{self._tally.total} lines, {self.text()}", markup=False)
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        with Progress(*columns, console=self._console, transient=True) as live:
            task = live.add_task("", total=self._tally.total)
            while True:
                live.update(task, completed=self._tally.done, description=self.text())
                await asyncio.sleep(_LIVE_S)

    def text(self) -> str:
        """Return failed lines, speed and the time that is left, in words."""
        tally = self._tally
        tokens_per_s = (tally.prompt_tokens + tally.completion_tokens) / max(self.elapsed_s, 1e-3)
        here = tally.done - tally.resumed
        left_s = (tally.total - tally.done) * self.elapsed_s / here if here else None
        eta = "unknown" if left_s is None else str(datetime.timedelta(seconds=round(left_s)))
        return f"{tally.failed} failed, {tally.in_flight} in flight, {tokens_per_s:.0f} tokens/s, {eta} left"
