# SPDX-License-Identifier: Apache-2.0
"""An engine process for several adapters: the owner starts it, clients find it, and both get it back when it dies."""

import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from simulated_release import write_broken_release, write_release

from serving.engine_process.engine_client import EngineClient
from serving.engine_process.engine_messages import Step
from serving.engine_process.engine_sources import EngineListener, EngineSource, OwnedEngine, SharedEngine
from serving.engines.seam.base import FinishReason, GenerationRequest, SamplingParams, TokenChunk
from serving.process.run_dir import RUN_DIR_VARIABLE, run_dir
from trireme.base.errors import ServerError, Unavailable


class Adapter:
    """An adapter of an engine, with the chunks that it got."""

    def __init__(self, source: EngineSource) -> None:
        self.chunks = queue.Queue[TokenChunk]()
        self.deaths = queue.Queue[Unavailable]()
        self.client = EngineClient(source, on_steps=self._take, on_death=self.deaths.put)

    def _take(self, steps: list[Step]) -> None:
        for step in steps:
            for chunk in step.chunks:
                self.chunks.put(chunk)

    def ask(self, key: int, token_id: int) -> list[int]:
        """Return the whole output of a request for three tokens."""
        sampling = SamplingParams(max_tokens=3)
        self.client.submit(GenerationRequest(key=key, input_ids=[token_id], sampling=sampling))
        token_ids: list[int] = []
        while True:
            chunk = self.chunks.get(timeout=10)
            assert (chunk.key, chunk.error) == (key, None)
            token_ids += chunk.token_ids
            if chunk.finish_reason is not None:
                assert chunk.finish_reason is FinishReason.LENGTH
                return token_ids


@pytest.fixture(autouse=True)
def folder_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Adapter]:
    made = Adapter(OwnedEngine(write_release(tmp_path, {"mode": "echo"}), EngineListener("1")))
    yield made
    made.client.close()


@pytest.fixture
def client() -> Iterator[Adapter]:
    made = Adapter(SharedEngine("1"))
    yield made
    made.client.close()


def test_owner_and_guests_are_served_by_one_engine_under_the_same_keys(owner: Adapter, client: Adapter) -> None:
    assert owner.client.start() == client.client.start()
    other = Adapter(SharedEngine("1"))
    other.client.start()
    for adapter, token_id in ((owner, 20), (client, 30), (other, 40)):
        assert adapter.ask(1, token_id) == [token_id] * 3
    other.client.close()
    assert client.ask(2, 30) == [30] * 3


def test_owner_and_guest_meet_in_a_folder_whose_path_is_too_long_for_a_socket(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(tmp_path_factory.mktemp("job" * 40)))
    owner = Adapter(OwnedEngine(write_release(tmp_path, {"mode": "echo"}), EngineListener("1")))
    client = Adapter(SharedEngine("1"))
    assert owner.client.start() == client.client.start()
    assert client.ask(1, 30) == [30] * 3
    client.client.close()
    owner.client.close()


def test_a_guest_waits_for_an_owner_that_comes_later(tmp_path: Path) -> None:
    client = Adapter(SharedEngine("1"))
    started = queue.Queue[bool]()

    def start() -> None:
        client.client.start()
        started.put(True)

    threading.Thread(target=start, daemon=True).start()
    with pytest.raises(queue.Empty):
        started.get(timeout=0.2)
    owner = Adapter(OwnedEngine(write_release(tmp_path, {"mode": "echo"}), EngineListener("1")))
    owner.client.start()
    assert started.get(timeout=10)
    assert client.ask(1, 20) == [20] * 3
    client.client.close()
    owner.client.close()


def test_a_guest_learns_that_the_engine_could_not_be_loaded(tmp_path: Path, client: Adapter) -> None:
    owner = Adapter(OwnedEngine(write_broken_release(tmp_path), EngineListener("1")))
    with pytest.raises(ServerError, match="could not be loaded"):
        owner.client.start()
    closer = threading.Timer(0.2, owner.client.close)
    closer.start()
    with pytest.raises(ServerError, match="tensorrt_llm"):
        client.client.start()
    closer.join()


def test_a_guest_does_not_wait_for_an_owner_that_has_died(tmp_path: Path, client: Adapter) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "engine-1"))
    with pytest.raises(ServerError, match="no model tensorrt_llm"):
        client.client.start()


def test_a_dead_engine_is_told_to_all_and_comes_back_for_all(owner: Adapter, client: Adapter) -> None:
    owner.client.start()
    client.client.start()
    pid = owner.client.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    for adapter in (owner, client):
        assert adapter.deaths.get(timeout=10).facts == {"reason": "engine_died"}
    for key, adapter in enumerate((owner, client), start=1):
        wait_until(lambda adapter=adapter: adapter.client._channel is not None)  # type: ignore[misc]
        assert adapter.ask(key, 20) == [20] * 3
    assert owner.client.pid != pid


def test_a_guest_that_waits_for_an_engine_can_be_closed(tmp_path: Path) -> None:
    listener = EngineListener("1")  # an owner whose engine never comes
    client = Adapter(SharedEngine("1"))
    closer = threading.Timer(0.2, client.client.close)
    closer.start()
    with pytest.raises(ServerError):
        client.client.start()
    closer.join()
    listener.close()
    assert list(tmp_path.iterdir()) == []


def test_a_guest_that_is_closed_at_the_moment_it_reached_the_owner_does_not_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = EngineListener("1")  # as above
    source = SharedEngine("1")
    call = source._call

    def call_and_close() -> socket.socket:
        sock = call()
        source.close()
        return sock

    monkeypatch.setattr(source, "_call", call_and_close)
    failed: list[ServerError] = []

    def connect() -> None:
        try:
            source.connect()
        except ServerError as exc:
            failed.append(exc)

    connecting = threading.Thread(target=connect, daemon=True)
    connecting.start()
    connecting.join(5)
    listener.close()
    assert [error.facts for error in failed] == [{"reason": "shutdown"}]


def test_a_newer_owner_takes_the_older_ones_place_and_keeps_it(tmp_path: Path, client: Adapter) -> None:
    release = write_release(tmp_path, {"mode": "echo"})
    older, newer = (Adapter(OwnedEngine(release, EngineListener("1"))) for _ in range(2))
    older.client.start()
    newer.client.start()
    older.client.close()
    client.client.start()
    assert client.ask(1, 20) == [20] * 3
    newer.client.close()


def test_releases_are_kept_apart(tmp_path: Path, owner: Adapter) -> None:
    second = Adapter(OwnedEngine(write_release(tmp_path / "second", {"mode": "hash"}), EngineListener("2")))
    owner.client.start()
    second.client.start()
    client = Adapter(SharedEngine("2"))
    client.client.start()
    assert client.ask(1, 20) == second.ask(1, 20) != [20] * 3
    client.client.close()
    second.client.close()


def test_below_a_plain_tritonserver_the_folder_goes_by_its_process_and_is_closed_to_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(RUN_DIR_VARIABLE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = run_dir()
    assert folder == run_dir() == tmp_path / f"trireme-{os.getuid()}-{os.getppid()}"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError, match="not ours"):
        run_dir()


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.005)
