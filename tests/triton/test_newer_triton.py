# SPDX-License-Identifier: Apache-2.0
"""What a newer tritonserver answers otherwise (2.71; the tests' own is 2.51), stood in for by `newer_triton`.

Each test is a row of the table in docs/support.md.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from newer_triton import write_newer_triton
from running_server import RunningServer, deployment_text
from streams_under_change import Streams, answers
from test_cancellation import wait_until
from test_live_releases import ENGINE, Live, kill_adapter

from serving.server.installation import RECORD

LOAD_TIMEOUT_S = 12


@pytest.fixture
def below(tmp_path: Path) -> tuple[str, ...]:
    """The command below which the newer server is found."""
    folder = write_newer_triton(tmp_path / "bin", RECORD)
    return ("env", f"PATH={folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def newer(tmp_path: Path, below: tuple[str, ...]) -> Iterator[Live]:
    """A server that serves release 1, on the newer tritonserver."""
    text = deployment_text("live", engine=ENGINE | {"seed": 1})
    options = ("--ready-timeout-s", str(LOAD_TIMEOUT_S), "--health-port", "0")
    with RunningServer(text, tmp_path / "live", options=options[:2], below=below) as server:
        yield Live(server)


def test_a_candidate_whose_adapter_is_dead_goes_though_the_server_is_not_ready(newer: Live) -> None:
    before = newer.server.tritonserver().pid
    newer.add(2, seed=2)
    with Streams(newer.server.url, {1: answers(newer.server.url, "ensemble")}) as streams:
        kill_adapter(newer, "ensemble_canary", 2)
        wait_until(lambda: not newer.server.is_ready(), 10)
        wait_until(lambda: newer.status()["canary"] is None and newer.server.is_ready(), 30)
        streams.wait_for(1, 64)
    assert (streams.wrong, streams.refused) == ([], [])
    assert newer.server.tritonserver().pid == before


def test_two_dead_candidates_go_one_after_the_other(newer: Live) -> None:
    newer.add(2, seed=2)
    newer.control.ask("add", release=newer.release(3, seed=3), is_canary=False)
    kill_adapter(newer, "tensorrt_llm", 2)
    kill_adapter(newer, "tensorrt_llm", 3)
    wait_until(lambda: [each["release"] for each in newer.status()["releases"]] == [1] and newer.server.is_ready(), 60)
    assert "could not be taken out" not in newer.server.log()
    newer.add(4, seed=4)
    newer.control.ask("promote", number=4)
    newer.control.ask("settle")
    newer.control.ask("remove", number=1)
    assert newer.server.is_ready()
