# SPDX-License-Identifier: Apache-2.0
"""A server that crashes while it loads is started again; one that ends by a decision of its own is not."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from ensemble_configs.errors import ServerError
from ensemble_configs.triton_spec import TritonSpec
from serving.server.drain_request import DrainRequest
from serving.server.health import Health
from serving.server.leaving import Leaving
from serving.server.stop_signal import StopSignal
from serving.server.supervision import Supervision
from serving.server.triton_process import TritonProcess


class Server:
    """Ends with a status while it loads, or, with None, becomes ready."""

    def __init__(self, exit_status: int | None, folder: Path) -> None:
        self.exit_status = exit_status
        self.run_dir = folder
        self.is_cleaned_up = False

    def is_loaded(self) -> bool:
        return self.exit_status is None

    def answers(self, *, timeout_s: float) -> bool:  # noqa: ARG002
        return True

    def turn_unready(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def clean_up(self) -> None:
        self.is_cleaned_up = True


class StopsOnceReady(StopSignal):
    """Asks to stop as soon as a server is ready; waits for nothing."""

    def __init__(self) -> None:
        self.count = 0

    def wait(self, timeout_s: float) -> bool:  # noqa: ARG002
        return self.count > 0

    wait_for_signal = wait


def supervise(
    folder: Path,
    statuses: list[int | None],
    *,
    give_up_candidate: Callable[[str], bool] = lambda _: False,
    **triton: object,
) -> tuple[list[str], list[Server]]:
    """What was told, and the servers that were started; each has the next of the statuses."""
    told: list[str] = []
    servers: list[Server] = []
    stop = StopsOnceReady()

    def start() -> TritonProcess:
        servers.append(Server(statuses[len(servers)], folder))
        return cast("TritonProcess", servers[-1])

    def on_ready(seconds: float) -> str:
        assert seconds >= 0
        stop.count = 1
        return "welcome"

    spec = TritonSpec.model_validate({"restart_backoff_s": 0.0} | triton)
    tell: Callable[[str], None] = told.append
    health = Health()
    run = Supervision(
        start=start,
        triton=spec,
        stop=stop,
        health=health,
        leaving=Leaving(stop, DrainRequest(stop.ask), health, delay_s=0, timeout_s=1, tell=tell),
        ready_timeout_s=5,
        on_ready=on_ready,
        tell=tell,
        give_up_candidate=give_up_candidate,
    ).run
    try:
        run()
    finally:
        assert all(server.is_cleaned_up for server in servers)
    return told, servers


def test_a_crash_while_loading_is_tried_again_and_the_welcome_comes_when_it_is_ready(tmp_path: Path) -> None:
    told, servers = supervise(tmp_path, [-6, -11, None])
    assert len(servers) == 3
    assert told[:3] == [
        "tritonserver ended with status -6 while loading; starting it again",
        "tritonserver ended with status -11 while loading; starting it again",
        "welcome",
    ]
    assert told[-1] == "stopped"


def test_what_triton_refuses_to_load_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match="ended with status 1 while loading"):
        supervise(tmp_path, [1, None])


def test_crashes_without_end_use_the_restarts_up(tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"status -6 while loading; given up after 2 restarts"):
        supervise(tmp_path, [-6] * 3, max_restarts=2)


def test_a_candidate_is_left_out_after_the_second_crash_in_a_row(tmp_path: Path) -> None:
    reasons: list[str] = []

    def give_up(reason: str) -> bool:
        reasons.append(reason)
        return True

    _, servers = supervise(tmp_path, [-6, None], give_up_candidate=give_up)
    assert (len(servers), reasons) == (2, []), "Triton crashes by itself, too"
    _, servers = supervise(tmp_path, [-6, -11, None], give_up_candidate=give_up)
    assert (len(servers), reasons) == (3, ["tritonserver ended with status -11 while loading"])


def test_a_candidate_that_may_be_to_blame_is_left_out_of_the_next_start(tmp_path: Path) -> None:
    reasons: list[str] = []

    def give_up(reason: str) -> bool:
        reasons.append(reason)
        return len(reasons) == 1

    told, servers = supervise(tmp_path, [1, None], give_up_candidate=give_up)
    assert (len(servers), told[-1]) == (2, "stopped")
    assert reasons == ["tritonserver ended with status 1 while loading"]
    with pytest.raises(ServerError, match="status 1 while loading"):
        supervise(tmp_path, [1, None], give_up_candidate=give_up)
