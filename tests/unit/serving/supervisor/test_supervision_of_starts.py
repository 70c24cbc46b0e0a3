# SPDX-License-Identifier: Apache-2.0
"""A server that crashes or sticks while it loads is started again; one that ends by a decision of its own is not."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from manual_clock import ManualClock

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.triton_spec import TritonSpec
from serving.supervisor.drain_request import DrainRequest
from serving.supervisor.health import Health
from serving.supervisor.shutdown import Shutdown
from serving.supervisor.stop_signal import StopSignal
from serving.supervisor.supervision import Supervision
from serving.triton.stuck_load import STUCK_S, StuckLoad
from serving.triton.triton_process import TritonProcess
from trireme.base.errors import ServerError, Unavailable

STUCK = 1000  # in place of an exit status


class Server:
    """A server that ends with a status while it loads, or, with None, becomes ready."""

    def __init__(self, exit_status: int | None, folder: Path) -> None:
        self.is_started_for = exit_status
        self.run_dir = folder
        self.is_cleaned_up = False

    @property
    def exit_status(self) -> int | None:
        return None if self.is_started_for == STUCK else self.is_started_for

    def is_loaded(self) -> bool:
        return self.is_started_for is None

    def is_stuck(self) -> bool:
        return self.is_started_for == STUCK

    def answers(self, *, timeout_s: float) -> bool:  # noqa: ARG002
        return True

    def turn_unready(self) -> None: ...

    def close_doors(self, because: Unavailable) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...

    def clean_up(self) -> None:
        self.is_cleaned_up = True


class StopsOnceReady(StopSignal):
    """A stop signal that asks for a stop as soon as a server is ready, and waits for nothing."""

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
    """Return the messages, and the servers that were started; each has the next of the statuses."""
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
        leaving=Shutdown(stop, DrainRequest(stop.ask), health, delay_s=0, timeout_s=1, tell=tell),
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


def test_a_start_that_sticks_is_tried_again_as_one_that_crashes(tmp_path: Path) -> None:
    told, servers = supervise(tmp_path, [STUCK, STUCK, None])
    assert len(servers) == 3
    lost = "tritonserver has lost a process of a model while loading, and waits for it; starting it again"
    assert told[:3] == [lost, lost, "welcome"]


STABLE = ("preprocessing-1", "tensorrt_llm-1", "postprocessing-1", "ensemble-1", "tensorrt_llm_bls-1")
OF_A_CANDIDATE = ("preprocessing-2", "tensorrt_llm-2", "postprocessing-2", "ensemble_canary-2")


def deployment(**more: object) -> DeploymentSpec:
    text: dict[str, object] = {"tokenizer": {"dir": "/t"}, "engine": {"provider": "simulated"}}
    return DeploymentSpec.model_validate({"name": "stuck", **text, **more})


def test_a_start_is_stuck_once_every_adapter_has_been_ready_for_long(tmp_path: Path) -> None:
    clock = ManualClock()
    load = StuckLoad(deployment(), tmp_path, clock)
    for name in STABLE[1:]:
        (tmp_path / f"{name}-abcd.sock").touch()
    clock.now_s += 1000
    assert not load.is_stuck(), "one is still loading"
    (tmp_path / f"{STABLE[0]}-abcd.sock").touch()
    assert not load.is_stuck()
    clock.now_s += STUCK_S
    assert not load.is_stuck()
    clock.now_s += 1
    assert load.is_stuck()


def test_all_processes_of_a_model_and_of_a_candidate_are_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    candidate = {"release": 2, "tokenizer": {"dir": "/t"}, "engine": {"provider": "simulated"}}
    spec = deployment(other_releases=[candidate], canary=2, instances={"preprocessing": 2})
    load = StuckLoad(spec, tmp_path, clock)
    for name in (*STABLE, *OF_A_CANDIDATE):
        (tmp_path / f"{name}-0000.sock").touch()
    assert not load.is_stuck()
    clock.now_s += 2 * STUCK_S
    assert not load.is_stuck(), "the second ones of preprocessing are still loading"
    for name in ("preprocessing-1", "preprocessing-2"):
        (tmp_path / f"{name}-1111.sock").touch()
    assert not load.is_stuck()
    clock.now_s += 2 * STUCK_S
    assert load.is_stuck()


def test_an_embedding_model_is_waited_for(tmp_path: Path) -> None:
    clock = ManualClock()
    embedding = {"name": "embed", "dir": "/models/embed", "pooling": "mean"}
    load = StuckLoad(deployment(embedding_models=[embedding]), tmp_path, clock)
    for name in STABLE:
        (tmp_path / f"{name}-abcd.sock").touch()
    assert not load.is_stuck()
    clock.now_s += 2 * STUCK_S
    assert not load.is_stuck(), "the embedding model is still loading"
    (tmp_path / "embed-1-abcd.sock").touch()
    assert not load.is_stuck()
    clock.now_s += 2 * STUCK_S
    assert load.is_stuck()


def test_nothing_is_said_of_a_server_that_also_loads_models_of_the_user(tmp_path: Path) -> None:
    clock = ManualClock()
    model = tmp_path / "mine"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text('backend: "python"\n')
    load = StuckLoad(deployment(extra_models=[{"name": "mine", "dir": str(model)}]), tmp_path, clock)
    for name in STABLE:
        (tmp_path / f"{name}-abcd.sock").touch()
    assert not load.is_stuck()
    clock.now_s += 1000
    assert not load.is_stuck()
