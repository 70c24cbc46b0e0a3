# SPDX-License-Identifier: Apache-2.0
"""An engine of several ranks: started by a launcher, lost with a rank, and ended with all of them."""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from engine_adapter import wait_until
from process_words import words_of
from ranked_engine import World, needs_mpirun

from serving.engine_guard.guarded_process import GuardedProcess
from trireme.base.errors import ServerError, SpecError, Unavailable

pytestmark = [pytest.mark.slow, needs_mpirun]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Yield a machine on which nothing is left at the end: no process, no socket, no file."""
    assert shutil.which("nvidia-smi") is None, "this machine has GPUs of its own"
    made = World(tmp_path, monkeypatch)
    try:
        yield made
        made.close()
    finally:
        for process in made.processes():
            process.kill()


def test_ranks_run_beside_the_engine_under_mpirun_on_their_part_of_the_machine(world: World) -> None:
    adapter = world.adapter(placement={"gpus": [2, 3], "cpus": [1]})
    adapter.client.start()
    assert adapter.ask(1) == 5
    assert len(world.ranks()) == 2
    for rank in world.ranks():
        assert rank.environ()["CUDA_VISIBLE_DEVICES"] == "2,3"
        assert rank.cpu_affinity() == [1]
    commands = [" ".join(words_of(process)) for process in world.processes()]
    assert any("mpirun" in command or "prterun" in command for command in commands)


def test_one_rank_runs_in_the_engines_process_without_mpi(world: World) -> None:
    adapter = world.adapter(tp_size=1)
    adapter.client.start()
    assert adapter.ask(1) == 5
    commands = [" ".join(words_of(process)) for process in world.processes()]
    assert len(commands) == 2, "the guard and the engine"
    assert world.ranks() == []


@pytest.mark.parametrize("loss", ["killed", pytest.param("terminated", marks=pytest.mark.soak)])
def test_a_dead_rank_is_told_to_those_who_wait_long_before_the_watchdog_and_a_new_engine_comes(
    world: World, loss: str
) -> None:
    adapter = world.adapter(watchdog_s=60.0)
    adapter.client.start()
    adapter.submit(1, 2000)
    adapter.chunks.get(timeout=10)
    old = world.ranks()
    old[1].send_signal({"killed": signal.SIGKILL, "terminated": signal.SIGTERM}[loss])
    lost_s = time.monotonic()
    assert adapter.deaths.get(timeout=20).facts == {"reason": "engine_died"}
    assert time.monotonic() - lost_s < 6
    adapter.ask_when_back(2)
    assert not any(rank.is_running() for rank in old)
    assert len(world.ranks()) == 2


@pytest.mark.parametrize("how", ["stopped", pytest.param("spinning", marks=pytest.mark.soak)])
def test_a_rank_that_hangs_ends_the_engine_within_the_watchdog(world: World, how: str) -> None:
    busy = world.folder / "busy"
    world.setenv("FAKE_BUSY_RANKS", str(busy))
    adapter = world.adapter(watchdog_s=3.0)
    adapter.client.start()
    time.sleep(4.0)  # without work nothing has to go on
    assert adapter.deaths.empty()
    adapter.submit(1, 2000)
    adapter.chunks.get(timeout=10)
    old = world.ranks()
    if how == "stopped":
        old[0].suspend()
    else:
        busy.touch()
    hung_s = time.monotonic()
    assert adapter.deaths.get(timeout=20).facts == {"reason": "engine_hung"}
    assert 2.0 < time.monotonic() - hung_s < 3.0 + 2.0
    busy.unlink(missing_ok=True)
    adapter.ask_when_back(2)
    assert not any(rank.is_running() for rank in old)


@pytest.mark.parametrize(
    ("accident", "text"),
    [
        ("killed", r"rank in process \d+ ended before.*NCCL.*NCCL WARN Call to ibv_modify_qp failed"),
        ("oom", "Executor worker returned error.*GPU's memory is full.*torch.OutOfMemoryError: CUDA out of memory"),
    ],
)
def test_a_rank_that_is_lost_while_loading_is_told_with_what_was_logged(world: World, accident: str, text: str) -> None:
    world.setenv("FAKE_RANK_ACCIDENT", accident)
    adapter = world.adapter(load_timeout_s=60.0)
    began_s = time.monotonic()
    with pytest.raises(ServerError, match=text):
        adapter.client.start()
    assert time.monotonic() - began_s < 20


def test_a_rank_that_is_lost_while_the_next_engine_loads_is_told_and_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    adapter = world.adapter()
    adapter.client.start()
    old = world.ranks()
    world.setenv("FAKE_RANK_ACCIDENT", "killed")
    old[1].kill()
    assert adapter.deaths.get(timeout=20).facts == {"reason": "engine_died"}
    with pytest.raises(Unavailable) as refusal:
        adapter.submit(1, 5)
    assert refusal.value.facts == {"reason": "engine_restarting"}
    wait_until(lambda: "the engine could not be restarted, attempt 1" in caplog.text)
    assert "NCCL WARN Call to ibv_modify_qp failed" in caplog.text
    world.setenv("FAKE_RANK_ACCIDENT", "")
    adapter.ask_when_back(2)
    assert len(world.ranks()) == 2
    assert adapter.deaths.empty()


def test_an_engine_that_never_loads_is_ended_at_its_deadline(world: World) -> None:
    world.setenv("FAKE_RANK_ACCIDENT", "stuck")
    adapter = world.adapter(load_timeout_s=6.0)
    with pytest.raises(ServerError, match=r"has not loaded .*within 6 s \(engine.load_timeout_s\)"):
        adapter.client.start()


def test_without_a_launcher_what_mpi_says_ends_the_wait_at_once(world: World) -> None:
    adapter = world.adapter(launcher="none", load_timeout_s=60.0)
    began_s = time.monotonic()
    text = "MPI_ERR_SPAWN: could not spawn processes.*let engine.launcher be auto"
    with pytest.raises(ServerError, match=text):
        adapter.client.start()
    assert time.monotonic() - began_s < 20


def test_where_mpi_can_spawn_no_launcher_is_needed(world: World) -> None:
    world.setenv("FAKE_WITHOUT", "MPI_NEEDS_A_LAUNCHER")
    adapter = world.adapter(launcher="none")
    adapter.client.start()
    assert adapter.ask(1) == 5
    assert len(world.ranks()) == 2


def test_a_launcher_that_is_not_installed_is_named_with_the_cure(world: World) -> None:
    world.setenv("PATH", f"{world.bin}:/usr/bin:/bin")
    with pytest.raises(SpecError, match=r"starts under mpirun, which is not on PATH.*apt-get install openmpi-bin"):
        world.adapter().client.start()


def test_two_engines_run_side_by_side_and_one_is_lost_alone(world: World) -> None:
    first, second = world.adapter("1"), world.adapter("2")
    first.client.start()
    before = world.ranks()
    second.client.start()
    assert (first.ask(1), second.ask(1)) == (5, 5)
    before[0].kill()
    assert first.deaths.get(timeout=20).facts == {"reason": "engine_died"}
    assert second.ask(2) == 5
    first.ask_when_back(2)
    assert second.deaths.empty()


def test_a_slow_shutdown_is_waited_for(world: World) -> None:
    world.setenv("FAKE_SLOW_SHUTDOWN_S", "9")
    adapter = world.adapter()
    adapter.client.start()
    began_s = time.monotonic()
    adapter.client.close()
    assert 9 <= time.monotonic() - began_s < 20
    assert world.processes() == []


def test_a_shutdown_that_is_stuck_is_ended_with_all_ranks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ensemble_configs.spec.engine.tensorrt_llm_specs.PyTorchEngineSpec.close_timeout_s", 2.0)
    world.setenv("FAKE_SLOW_SHUTDOWN_S", "3600")
    adapter = world.adapter()
    adapter.client.start()
    ranks = world.ranks()
    began_s = time.monotonic()
    adapter.client.close()
    assert time.monotonic() - began_s < 15
    assert not any(rank.is_running() for rank in ranks)


@pytest.mark.parametrize("victim", ["serving.engine_process.engine_loop", "prterun", "serving.engine_guard"])
def test_no_rank_outlives_the_process_that_is_killed_above_it(world: World, victim: str) -> None:
    adapter = world.adapter()
    adapter.client.start()
    old = world.ranks()
    _of(world, victim).kill()
    assert adapter.deaths.get(timeout=20).facts == {"reason": "engine_died"}
    adapter.ask_when_back(1)
    assert not any(rank.is_running() for rank in old)


def test_no_rank_outlives_a_guard_that_is_killed_before_it_has_told_of_any(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProcess, "_ranks", property(lambda _: [], lambda *_: None), raising=False)
    adapter = world.adapter()
    adapter.client.start()
    old = world.ranks()
    _of(world, "serving.engine_guard").kill()
    assert adapter.deaths.get(timeout=20).facts == {"reason": "engine_died"}
    adapter.ask_when_back(1)
    assert not any(rank.is_running() for rank in old)


def test_the_next_engine_starts_when_the_gpus_have_their_memory_back(world: World) -> None:
    world.setenv("FAKE_GPU_LAG_S", "4")
    adapter = world.adapter()
    adapter.client.start()
    world.ranks()[0].kill()
    adapter.deaths.get(timeout=20)
    lost_s = time.monotonic()
    adapter.ask_when_back(1)
    assert time.monotonic() - lost_s > 4
    free = [path for path in Path(world.memory).iterdir() if path.name.startswith(".")]
    assert len(free) == 2


def test_an_error_in_the_background_does_not_hold_up_the_others_longer_than_the_watchdog(world: World) -> None:
    error = world.folder / "error"
    world.setenv("FAKE_BACKGROUND_ERROR", str(error))
    adapter = world.adapter(watchdog_s=3.0)
    adapter.client.start()
    adapter.submit(1, 2000)
    adapter.chunks.get(timeout=10)
    error.touch()
    adapter.submit(2, 5)  # upstream shuts down in the thread of this call, which never returns
    began_s = time.monotonic()
    assert adapter.deaths.get(timeout=20).facts["reason"] in ("engine_hung", "engine_died")
    assert time.monotonic() - began_s < 3.0 + 2.0
    error.unlink()
    adapter.ask_when_back(3)


IN_TURNS: dict[str, object] = {"pool_mib": 100, "memory_mib": 60, "min_resident_s": 0.0, "max_slice_s": 30.0}


def test_engines_take_turns_on_the_same_gpus_and_a_slow_end_is_no_hang(world: World) -> None:
    world.setenv("FAKE_SLOW_SHUTDOWN_S", "4")  # longer than the watchdog
    first, second = (world.adapter(name, on_demand=IN_TURNS, watchdog_s=3.0) for name in ("1", "2"))
    first.client.start()
    second.client.start()
    for adapter in (first, second):
        assert adapter.ask(1) == 5
        used = [path for path in world.memory.iterdir() if psutil.pid_exists(int(path.name.strip(".")))]
        assert len(used) == len(world.ranks()) == 2, "one engine at a time"
    assert first.deaths.empty()
    assert second.deaths.empty()


def test_an_engine_in_turns_that_hangs_is_told_and_comes_back(world: World) -> None:
    adapter = world.adapter(on_demand=IN_TURNS, watchdog_s=3.0)
    adapter.client.start()
    adapter.submit(1, 2000)
    adapter.chunks.get(timeout=20)
    world.ranks()[0].suspend()
    hung_s = time.monotonic()
    while (error := adapter.chunks.get(timeout=20).error) is None:
        pass
    assert "reason=engine_" in error
    assert time.monotonic() - hung_s < 3.0 + 2.0
    assert adapter.ask(2) == 5
    assert adapter.deaths.empty(), "the process that has the requests lives"


def _of(world: World, words: str) -> psutil.Process:
    """Return the innermost process whose command line has these words."""
    wait_until(lambda: bool(world.ranks()))
    return [each for each in world.processes() if words in " ".join(words_of(each))][-1]
