# SPDX-License-Identifier: Apache-2.0
"""vLLM's real engine in two ranks, a process each: answers, cancels, and what is left when one is lost."""

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from engine_adapter import Adapter, wait_until
from process_words import words_of
from vllm_environment import WHY_NOT, is_there, vllm_spec

from benchmarks.soak import Evidence
from ensemble_configs.render.release_file import load_release
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from serving.engine_guard.shared_files import SHARED_MEMORY
from serving.engine_process.engine_sources import EngineListener, OwnedEngine
from serving.engines.vllm.vllm_start import openmp_note
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import ServerError

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not is_there(), reason=WHY_NOT), pytest.mark.timeout(900)]
READY_S = 240.0
WATCHDOG_S = 10.0
PROMPTS = ([30, 31, 32], list(range(40, 240)), [500] * 64)
_MARK = "TRIREME_TEST_RANKS"  # in the environment of each process of a test


class Machine:
    """A machine whose processes and files can be told from all others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.temporary = Path(tempfile.mkdtemp(prefix="ranks-"))  # not below pytest's: the path of a socket is short
        self._run_dir = self.temporary / "run"
        self._run_dir.mkdir()
        # What torch has compiled is kept for all tests.
        compiled = Path(tempfile.gettempdir()) / f"torchinductor_{os.getuid()}"
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(compiled))
        monkeypatch.setenv(RUN_DIR_VARIABLE, str(self._run_dir))
        monkeypatch.setenv("TMPDIR", str(self.temporary))
        monkeypatch.setenv(_MARK, str(self.temporary))
        self._shared: set[str] = set()  # what our processes had of it, by name
        self._adapters: list[Adapter] = []
        self._are_several = False

    def adapter(self, **engine: object) -> Adapter:
        """Return a client of a release with such an engine, not started."""
        name = str(len(self._adapters))
        spec = vllm_spec(**({"tp_size": 2, "watchdog_s": WATCHDOG_S} | engine))
        self._are_several |= spec.world_size > 1
        deployment = DeploymentSpec.of_one(name="test", tokenizer=TokenizerSpec(dir=spec.dir), engine=spec)
        write_repository(deployment, root=self._folder / name, source="test.yaml")
        folder = self._folder / name / "tensorrt_llm" / "1"
        self._adapters.append(
            Adapter(OwnedEngine.of_release(load_release(folder), folder, EngineListener(f"ranks{name}")))
        )
        return self._adapters[-1]

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get(_MARK) == str(self.temporary) and process.pid != os.getpid()
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        for process in found:
            self._shared |= shared_by(process.pid)
        return found

    def find(self, words: str) -> list[psutil.Process]:
        return [process for process in self.processes() if words in " ".join(words_of(process))]

    def ranks(self) -> list[psutil.Process]:
        return self.find("VLLM::Worker")

    def left(self) -> list[str]:
        """Return what lies in the shared memory and in the temporary folder, but for what a server has by itself."""
        files = {str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*")}
        kept = {path for path in files if path == "run" or path.startswith(("run/code", "torchinductor_"))}
        return sorted(files - kept | {name for name in self._shared if (SHARED_MEMORY / name).exists()})

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.client.close()
        wait_until(lambda: self.processes() == [])
        assert self.left() == []
        assert len(self._shared) > (5 if self._are_several else 0), "what they share was seen"


def shared_by(pid: int) -> set[str]:
    """Return the files of shared memory that a process maps, and the one that Intel's OpenMP names by it."""
    names = {Path(openmp_note(pid)).name}
    with contextlib.suppress(OSError):  # it has ended
        for mapped in Path(f"/proc/{pid}/map_files").iterdir():
            with contextlib.suppress(OSError):
                target = mapped.readlink()
                if target.parent == SHARED_MEMORY and not target.name.endswith("(deleted)"):
                    names.add(target.name)
    return names


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Yield a machine on which nothing is left at the end: no process, no socket, no shared memory, no file."""
    made = Machine(tmp_path, monkeypatch)
    try:
        yield made
        made.close()
    finally:
        for process in made.processes():
            process.kill()


def lose(machine: Machine, adapter: Adapter, victim: str, number: int, key: int) -> tuple[float, list[psutil.Process]]:
    """Signal the last process with these words in its command line while a request runs.

    Returns:
        The seconds until the adapter knew, and all processes of that engine.
    """
    adapter.submit(key, 450)
    adapter.chunks.get(timeout=30)
    old = machine.processes()
    lost_s = time.monotonic()
    machine.find(victim)[-1].send_signal(number)
    reason = "engine_hung" if number == signal.SIGSTOP else "engine_died"
    assert adapter.deaths.get(timeout=30).facts == {"reason": reason}
    return time.monotonic() - lost_s, old


def comes_back(machine: Machine, adapter: Adapter, old: list[psutil.Process], key: int) -> None:
    adapter.ask_when_back(key, READY_S)
    assert not any(process.is_running() for process in old)
    assert len(machine.ranks()) == 2
    while not adapter.chunks.empty():
        adapter.chunks.get()


def test_two_ranks_answer_as_one_stop_what_is_cancelled_and_a_lost_one_is_told_at_once(machine: Machine) -> None:
    alone = machine.adapter(tp_size=1)
    alone.client.start()
    expected = []
    for key, prompt in enumerate(PROMPTS):
        alone.submit(key, 32, prompt)
        expected.append(alone.answer(key))
    alone.client.close()
    both = machine.adapter()
    both.client.start()
    for rank in machine.ranks():
        assert rank.environ()["OMP_NUM_THREADS"] == "1"
    for key, prompt in enumerate(PROMPTS):
        both.submit(key, 32, prompt)
        assert both.answer(key) == expected[key], prompt
    both.submit(8, 450)
    both.chunks.get(timeout=30)
    both.client.cancel(8)
    wait_until(lambda: both.stats is not None and both.stats.num_used_kv_blocks == 0, timeout_s=10)
    took_s, old = lose(machine, both, "VLLM::Worker_TP1", signal.SIGKILL, key=9)
    assert took_s < 6
    comes_back(machine, both, old, key=10)
    both.submit(11, 32, PROMPTS[0])
    assert both.answer(11) == expected[0]


def test_one_rank_leaves_nothing_when_it_is_killed_and_nothing_when_it_ends(machine: Machine) -> None:
    alone = machine.adapter(tp_size=1)
    alone.client.start()
    lose(machine, alone, "serving.engine_process.engine_loop", signal.SIGKILL, key=1)
    alone.ask_when_back(2, READY_S)
    [_] = (machine.temporary / "run").glob("launch-*")  # of the engine that serves


@pytest.mark.soak
@pytest.mark.parametrize("turn", range(5))
def test_whatever_is_killed_or_hangs_the_next_engine_answers_and_nothing_is_left(
    machine: Machine, turn: int, evidence: Evidence
) -> None:
    adapter = machine.adapter()
    adapter.client.start()
    key = 1
    seconds: dict[str, float] = {}
    for victim, number, within_s in (
        ("VLLM::Worker_TP0", signal.SIGKILL, 6.0),
        ("VLLM::Worker_TP1", signal.SIGSTOP, WATCHDOG_S + 3.0),
        ("serving.engine_process.engine_loop", signal.SIGKILL, 6.0),
        ("serving.engine_process.engine_loop", signal.SIGSTOP, WATCHDOG_S + 3.0),
        ("serving.engine_guard", signal.SIGKILL, 6.0),
    ):
        took_s, old = lose(machine, adapter, victim, number, key)
        assert took_s < within_s, victim
        comes_back(machine, adapter, old, key + 1)
        key += 2
        seconds[f"{victim} {number.name}"] = round(took_s, 2)
    evidence.note(f"two ranks of vllm, turn {turn}: seconds until the loss is told", seconds)


@pytest.mark.soak
def test_a_rank_that_is_lost_while_loading_ends_the_start_by_name(machine: Machine) -> None:
    adapter = machine.adapter()
    with ThreadPoolExecutor() as pool:
        start = pool.submit(adapter.client.start)
        wait_until(lambda: len(machine.ranks()) == 2)
        machine.ranks()[1].kill()
        with pytest.raises(ServerError, match=r"its rank in process \d+ ended before"):
            start.result()
