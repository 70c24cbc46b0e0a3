# SPDX-License-Identifier: Apache-2.0
"""The messages of a batch job about itself: plain lines where nobody watches, a live line on a terminal."""

import asyncio
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from batch_files import completion, write_lines
from kserve_server import HANG, KServeServer, Step, response

from clients.batch import progress
from clients.batch.job import Tally
from clients.batch.progress import JobProgress


def words(tally: Tally, *, elapsed_s: float) -> str:
    shown = JobProgress(tally)
    shown._began_s -= elapsed_s
    return shown.text()


def test_speed_and_what_is_left_are_those_of_this_run() -> None:
    tally = Tally(total=100, done=60, failed=2, resumed=40, prompt_tokens=300, completion_tokens=700, in_flight=5)
    # 20 lines in 100 s, 40 are left
    assert words(tally, elapsed_s=100.0) == "2 failed, 5 in flight, 10 tokens/s, 0:03:20 left"


def test_what_is_left_is_not_guessed_before_there_is_a_result() -> None:
    tally = Tally(total=100, done=40, failed=0, resumed=40)
    assert words(tally, elapsed_s=100.0) == "0 failed, 0 in flight, 0 tokens/s, unknown left"


def test_long_times_are_told_in_hours() -> None:
    tally = Tally(total=101, done=1, failed=0, resumed=0)
    assert words(tally, elapsed_s=60.0).endswith("1:40:00 left")


def test_without_a_terminal_there_are_plain_lines(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "_PLAIN_S", 0.02)

    async def show() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(JobProgress(Tally(total=3, done=1, failed=0, resumed=0)).show(), 0.5)

    asyncio.run(show())
    said = capfd.readouterr().err
    assert said.startswith("1/3 lines, 0 failed, 0 in flight, ")
    assert "\x1b" not in said


def test_on_a_terminal_a_live_line_shows_how_many_are_done(tmp_path: Path) -> None:
    def first_only(request: Any) -> list[Step]:
        del request
        if len(server.requests) > 2:  # the probe, the first line
            return [HANG]
        return [response("x", num_input_tokens=1, num_output_tokens=1, finish_reason="stop", final=True)]

    source = write_lines(tmp_path / "in.jsonl", [completion("a"), completion("b")])
    command = [sys.executable, "-m", "trireme", "batch", "run", str(source), "--out", str(tmp_path / "out")]
    ours, theirs = pty.openpty()
    with KServeServer(first_only) as server:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        job = subprocess.Popen([*command, "--url", server.url], stderr=theirs, env=environment)
        os.close(theirs)
        killer = threading.Timer(30, job.kill)  # a test that reads for so long has failed
        killer.start()
        said = b""
        while b"1/2" not in said:
            try:
                said += os.read(ours, 4096)
            except OSError:  # nobody writes any more
                break
        killer.cancel()
        job.kill()
        job.wait()
        os.close(ours)
    assert b"1/2" in said
