# SPDX-License-Identifier: Apache-2.0
"""The progress of a build, on a terminal and elsewhere."""

import io
from pathlib import Path

from rich.console import Console

from build_engines.stages.build_progress import BuildProgress
from build_engines.stages.stage_list import Command, Stage

STAGE = Stage("engine", "trtllm-build: 2 ranks", Command(("trtllm-build",)), key={})


def shown(*, is_terminal: bool) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=is_terminal, width=100, color_system=None)
    with BuildProgress(console) as progress:
        progress.stage_started(2, 3, STAGE)
        progress.stage_finished(2, 3, STAGE, 71.2, is_reused=False)
        progress.stage_finished(3, 3, STAGE, 4.0, is_reused=True)
    return out.getvalue()


def test_elsewhere_a_stage_is_a_line_when_it_starts_and_one_when_it_ends() -> None:
    assert shown(is_terminal=False).splitlines() == [
        "[2/3] engine: trtllm-build: 2 ranks ...",
        "[2/3] engine: done in 71 s",
        "[3/3] engine: finished earlier, in 4.0 s",
    ]


def test_on_a_terminal_a_running_stage_is_a_live_line_that_goes() -> None:
    text = shown(is_terminal=True)
    assert "[2/3] engine: trtllm-build: 2 ranks" in text
    assert "..." not in text
    assert "[2/3] engine: done in 71 s" in text


def test_a_failed_stage_shows_the_end_of_its_log_as_it_is() -> None:
    out = io.StringIO()
    with BuildProgress(Console(file=out, width=100)) as progress:
        progress.stage_failed(1, 3, STAGE, Path("x.log"), ["[bold]CUDA out of memory[/bold]"])
    assert "    [bold]CUDA out of memory[/bold]\n  the last lines of x.log\n" in out.getvalue()
