# SPDX-License-Identifier: Apache-2.0
"""The progress of a build: a live line on a terminal, plain lines elsewhere; all on standard error."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from build_engines.stages.stage_list import Stage
from trireme.base.durations import duration


class BuildProgress:
    """A watcher of stages (`build_engines.stages.stage_list.StageWatcher`) that shows progress."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False, soft_wrap=True)
        self._live = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            with contextlib.suppress(BrokenPipeError):
                self._live.stop()

    def tell(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False)

    def stage_started(self, number: int, total: int, stage: Stage) -> None:
        """Show that a stage runs."""
        line = f"[{number}/{total}] {stage.name}: {stage.title}"
        if self._console.is_terminal:
            self._task = self._live.add_task(line.replace("[", r"\["), total=None)
        else:
            self.tell(f"{line} ...")

    def stage_finished(self, number: int, total: int, stage: Stage, duration_s: float, *, is_reused: bool) -> None:
        """Print that a stage is done."""
        self._clear()
        how = "finished earlier, in" if is_reused else "done in"
        self.tell(f"[{number}/{total}] {stage.name}: {how} {duration(duration_s)}")

    def stage_failed(self, number: int, total: int, stage: Stage, log: Path | None, tail: Sequence[str]) -> None:
        """Show the end of a failed stage's log."""
        self._clear()
        self.tell(f"[{number}/{total}] {stage.name}: not finished")
        for line in tail:
            self.tell(f"    {line}")
        if tail:
            self.tell(f"  the last lines of {log}")

    def _clear(self) -> None:
        if self._task is not None:
            self._live.remove_task(self._task)
            self._task = None
