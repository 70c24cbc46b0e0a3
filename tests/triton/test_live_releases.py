# SPDX-License-Identifier: Apache-2.0
"""Releases come, are promoted and go while 32 streams run: nobody loses a character, and the stable engine stays."""

from collections.abc import Iterator
from typing import Any

import pytest
from running_server import RunningServer, deployment_text
from streams_under_change import Streams, answers

from clients.rollout.server_control import ServerControl
from ensemble_configs.errors import ServingError, SpecError

LOAD_TIMEOUT_S = 20
ENGINE: dict[str, Any] = {"provider": "simulated", "step_ms": 4.0, "max_num_seqs": 64, "num_kv_blocks": 4096}


class Live:
    """A server that serves release 1, and its control socket."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server
        self.said: list[str] = []
        self.control = ServerControl(
            server.folder / "build" / "live" / "control.sock", timeout_s=120, tell=self.said.append
        )

    def status(self) -> dict[str, Any]:
        models: Any = self.control.ask("status")["models"]
        assert len(models) == 1
        return dict(models[0])

    def release(self, number: int, **engine: object) -> dict[str, Any]:
        """The stable release with another engine."""
        stable = next(each for each in self.status()["releases"] if each["release"] == self.status()["release"])
        return {**stable, "release": number, "engine": {**stable["engine"], **engine}}

    def add(self, number: int, **engine: object) -> None:
        self.control.ask("add", release=self.release(number, **engine))


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    text = deployment_text("live", engine=ENGINE | {"seed": 1})
    # A release that hangs while it loads is given up after so long.
    options = ("--ready-timeout-s", str(LOAD_TIMEOUT_S))
    with RunningServer(text, tmp_path_factory.mktemp("live"), options=options) as server:
        yield Live(server)


def test_a_whole_rollout_and_a_rollback_under_streams(live: Live) -> None:
    url = live.server.url
    by_release = {1: answers(url, "ensemble")}
    stable_pid = live.status()["engine_pids"]["1"]
    with Streams(url, by_release) as streams:
        live.add(2, seed=2)
        by_release[2] = answers(url, "ensemble_canary")
        assert by_release[1] != by_release[2]
        streams.share = 0.5
        streams.wait_for(2, 64)
        live.control.ask("promote", number=2)
        streams.share = 0.0
        streams.wait_for(2, 64)
        live.control.ask("settle")
        assert live.status()["engine_pids"]["1"] == stable_pid
        live.control.ask("remove", number=1)
        assert live.status()["release"] == 2
        assert set(live.status()["engine_pids"]) == {"2"}
        new_pid = live.status()["engine_pids"]["2"]
        live.add(3, seed=3)
        by_release[3] = answers(url, "ensemble_canary")
        streams.share = 0.5
        streams.wait_for(3, 64)
        streams.share = 0.0
        streams.wait_for(2, 64)
        live.control.ask("remove", number=3)
        streams.wait_for(2, 64)
    assert streams.wrong == []
    assert streams.refused == []
    assert live.status()["engine_pids"] == {"2": new_pid}
    assert live.status()["canary"] is None


@pytest.mark.parametrize("kind", ["crash", "hang"])
def test_a_release_that_cannot_be_loaded_is_taken_back(live: Live, kind: str) -> None:
    before = live.status()
    with Streams(live.server.url, {before["release"]: answers(live.server.url, "ensemble")}) as streams:
        with pytest.raises(ServingError):
            live.add(9, fault={"kind": kind})
        streams.wait_for(before["release"], 64)
    assert (streams.wrong, streams.refused) == ([], [])
    assert live.status() == before
    assert live.server.is_ready()


def test_what_is_asked_wrongly_changes_nothing(live: Live) -> None:
    before = live.status()
    for operation, question in [
        ("remove", {"number": before["release"]}),
        ("promote", {"number": 77}),
        ("promote", {"number": True}),
        ("add", {"release": {"release": 5}}),
        ("add", {"release": live.release(5), "model": "none"}),
        ("dance", {}),
    ]:
        with pytest.raises(ServingError):
            live.control.ask(operation, **question)
    assert live.status() == before


def test_a_number_stands_for_one_release_for_ever(live: Live) -> None:
    live.add(5, seed=5)
    pid = live.status()["engine_pids"]["5"]
    with pytest.raises(SpecError, match="needs a server of its own"):
        live.add(5, seed=6)
    live.add(5, seed=5)
    assert live.status()["engine_pids"]["5"] == pid
    live.control.ask("remove", number=5)
    assert live.status()["canary"] is None
