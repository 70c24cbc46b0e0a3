# SPDX-License-Identifier: Apache-2.0
"""The commands of `trireme rollout`, used wrongly or by two at once: what is said, before anything is begun."""

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rollout_command import rollout

from clients.rollout.choice import driven_store
from clients.rollout.operator_commands import phase_after
from clients.rollout.records.file_lock import alone, is_free
from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.state import OperatorCommand, Phase
from clients.rollout.records.store import Store
from clients.rollout.second_server import check_second
from clients.rollout.server_place import ServerPlace
from serving.triton.triton_api import reachable
from trireme.base.errors import RequestError

pytestmark = pytest.mark.slow

PLAN = Plan(candidate=2, stable=1, release={"release": 2}, salt="s", shares=(0.05, 1.0))
ARMS = Plan(
    mode=Mode.AB,
    candidate=2,
    stable=1,
    release={"release": 2},
    salt="s",
    shares=(1.0,),
    more_releases=({"release": 3},),
    arm_shares=(0.5, 0.25, 0.25),
    gpus_per_seat=(1.0, 1.0, 1.0),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store with a rollout that nobody drives."""
    path = tmp_path / "rollouts.sqlite"
    with Store(path) as store:
        number = store.begin("chat", PLAN.text(), why="a test").id
        store.enter(number, Phase.RUNNING, why="5 %", step=0)
    return path


def test_who_looks_is_told_that_nobody_drives_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("status", "--store", str(path)) == 0
    assert "nobody drives it now" in capsys.readouterr().out
    assert rollout("status", "--store", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["is_driven"] is False
    with alone(path):
        assert rollout("status", "--store", str(path), "--json") == 0
        assert json.loads(capsys.readouterr().out)["is_driven"] is True
        assert rollout("status", "--store", str(path)) == 0
        assert "nobody drives it" not in capsys.readouterr().out


def test_what_is_asked_for_waits_for_who_drives_it(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("abort", "--store", str(path), "--why", "a bug") == 0
    assert "nobody drives it now: `trireme rollout run`" in capsys.readouterr().err
    with Store(path) as store:
        asked = store.next_command(1)
    assert asked is not None
    assert (asked.command, asked.why) == (OperatorCommand.ABORT, "a bug")


def test_what_cannot_be_done_now_is_refused_at_once(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("resume", "--store", str(path)) == 2
    assert "the rollout is running, and can be asked for pause, promote, abort" in capsys.readouterr().err
    assert rollout("promote", "--store", str(path), "--release", "7") == 2
    assert "release 7 is not on trial; there are: 2" in " ".join(capsys.readouterr().err.split())
    with Store(path) as store:
        assert store.next_command(1) is None


@pytest.mark.parametrize(
    ("phase", "command", "becomes"),
    [
        (Phase.STARTING, OperatorCommand.ABORT, Phase.ROLLING_BACK),
        (Phase.RUNNING, OperatorCommand.PAUSE, Phase.PAUSED),
        (Phase.HELD, OperatorCommand.RESUME, Phase.RUNNING),
        (Phase.PAUSED, OperatorCommand.PROMOTE, Phase.PROMOTING),
    ],
)
def test_a_command_leads_to_a_phase(phase: Phase, command: OperatorCommand, becomes: Phase) -> None:
    assert phase_after(phase, command, PLAN, None) is becomes


def test_of_several_candidates_the_promoted_one_is_named() -> None:
    with pytest.raises(RequestError, match="name the release with --release: 2, 3"):
        phase_after(Phase.RUNNING, OperatorCommand.PROMOTE, ARMS, None)
    assert phase_after(Phase.RUNNING, OperatorCommand.PROMOTE, ARMS, 3) is Phase.PROMOTING


@pytest.mark.parametrize("phase", [Phase.SETTLING, Phase.ROLLING_BACK, Phase.ENDING])
def test_what_is_decided_stays_so(phase: Phase) -> None:
    with pytest.raises(RequestError, match="can be asked for nothing"):
        phase_after(phase, OperatorCommand.ABORT, PLAN, None)


@pytest.mark.parametrize("command", ["status", "history", "report", "abort"])
def test_who_only_looks_makes_no_store(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    missing = tmp_path / "none.sqlite"
    assert rollout(command, "--store", str(missing)) == 2
    assert "there is no store of rollouts" in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_was_never_reached_has_no_report(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rollout("report", "--store", str(path), "--step", "1") == 2
    assert "has reached step 0; --step must be 0 to that, got 1" in " ".join(capsys.readouterr().err.split())
    assert rollout("report", "--store", str(path), "--assignments", str(path / "no" / "log.csv")) == 2
    assert "cannot write the assignments" in " ".join(capsys.readouterr().err.split())


def test_one_process_drives_a_store(path: Path) -> None:
    assert is_free(path)
    with alone(path):
        assert not is_free(path)
        with pytest.raises(RequestError, match=rf"another process \({os.getpid()}\) drives the rollouts"), alone(path):
            pass
    assert is_free(path)


def test_one_process_drives_a_server_whatever_its_store(tmp_path: Path) -> None:
    place = ServerPlace(tmp_path / "build" / "chat")
    with (
        driven_store(place, tmp_path / "a.sqlite", tell=print),
        pytest.raises(RequestError, match=str(place.folder)),
        driven_store(place, tmp_path / "b.sqlite", tell=print),
    ):
        pass


def test_whoever_only_looks_stops_nobody_who_begins(path: Path) -> None:
    is_done = threading.Event()

    def look() -> None:
        while not is_done.is_set():
            is_free(path)

    looking = [threading.Thread(target=look) for _ in range(2)]
    for thread in looking:
        thread.start()
    try:
        deadline_s = time.monotonic() + 1
        while time.monotonic() < deadline_s:
            with alone(path):
                pass
    finally:
        is_done.set()
        for thread in looking:
            thread.join()


def test_a_second_server_is_another_one_of_the_same_model() -> None:
    first: dict[str, Any] = {"server_ids": ["7"], "name": "chat"}
    check_second(first, {"server_ids": ["8"], "name": "chat"}, "b")
    with pytest.raises(RequestError, match="second_server b is the first server itself"):
        check_second(first, {"server_ids": ["7"], "name": "chat"}, "b")
    with pytest.raises(RequestError, match="the model of second_server b is other, and must be called chat"):
        check_second(first, {"server_ids": ["8"], "name": "other"}, "b")


@pytest.mark.parametrize(
    ("host", "address"),
    [("0.0.0.0", "127.0.0.1"), ("::", "[::1]"), ("::1", "[::1]"), ("10.0.0.7", "10.0.0.7"), ("node", "node")],
)
def test_a_server_is_reached_where_it_listens(host: str, address: str) -> None:
    assert reachable(host) == address
