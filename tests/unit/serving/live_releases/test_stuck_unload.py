# SPDX-License-Identifier: Apache-2.0
"""A version stuck in its unload, which is ended; a stand-in takes its number until Triton has forgotten it."""

import contextlib
import itertools
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from ensemble_configs.render.model_configs import GENERATED
from serving.live_releases import stuck_unload
from serving.live_releases.stuck_unload import forget, wait_unloaded
from serving.process.control_channel import ControlChannel
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import ServerError, Unavailable

CONFIG = f'{GENERATED}x.yaml\nname: "m"\nversion_policy {{\n  specific {{\n    versions: [2]\n  }}\n}}\n'


class Server:
    """A Triton that loads the versions in its repository."""

    def __init__(self, root: Path, run_dir: Path) -> None:
        self.root, self.run_dir = root, run_dir
        self.exit_status: int | None = None
        self.unloading: set[tuple[str, int]] = set()
        self.engines: dict[tuple[str, int], int] = {}
        self.is_away = False
        self.calls: list[tuple[object, ...]] = []

    def versions_unloading(self) -> set[tuple[str, int]]:
        if self.is_away:
            raise Unavailable("it does not answer", reason="no_answer")
        return self.unloading

    def engine_pids(self) -> Mapping[tuple[str, int], int]:
        return self.engines

    def kill_adapters(self, model: str, version: int) -> None:
        self.calls.append(("kill", model, version))
        self.engines.pop((model, version), None)

    def load(self, model: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        text = (self.root / model / "config.pbtxt").read_text()
        assert text.startswith(GENERATED)
        versions = [int(number) for number in re.search(r"versions: \[(.*)]", text)[1].split(",")]  # type: ignore[index]
        for number in versions:
            compile((self.root / model / str(number) / "model.py").read_text(), "model.py", "exec")
        self.calls.append(("load", model, versions))
        self.unloading = {version for version in self.unloading if version[0] != model}

    def unload(self, model: str, *, timeout_s: float) -> None:
        assert timeout_s > 0
        self.calls.append(("unload", model))


@pytest.fixture
def server(tmp_path: Path) -> Any:
    """Make a server of version 2 of m."""
    (tmp_path / "models/m/2").mkdir(parents=True)
    (tmp_path / "models/m/config.pbtxt").write_text(CONFIG)
    (tmp_path / "models/m/2/model.py").write_text("served = True")
    (tmp_path / "run").mkdir()
    return Server(tmp_path / "models", tmp_path / "run")


@pytest.fixture
def adapter(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Open the control channel of version 1 of m, which nobody has asked to end."""
    monkeypatch.setenv(RUN_DIR_VARIABLE, str(server.run_dir))
    monkeypatch.setattr("serving.process.control_channel.end_with_server", lambda: None)
    args = {"model_name": "m", "model_version": "1"}
    with contextlib.closing(ControlChannel(args, {"status": lambda: {"num_streams": 0}})):
        yield


def wait(server: Any, *, is_whole: bool = False, timeout_s: float = 20.0) -> list[str]:
    said: list[str] = []
    gone = {("m", 1)}
    wait_unloaded(server, server.root, gone, is_whole=is_whole, timeout_s=timeout_s, say=said.append)
    return said


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("adapter")
def test_what_nobody_asked_to_end_is_ended_and_forgotten(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_unload, "LOST_S", 0.2)
    server.unloading, before = {("m", 1)}, files(server.root)
    [said] = wait(server)
    assert "lost a request of m 1" in said
    assert server.calls == [("kill", "m", 1), ("load", "m", [1, 2]), ("load", "m", [2])]
    assert files(server.root) == before
    assert list(server.run_dir.glob("*.sock")) == [], "whoever watches the adapters would miss it"


def test_an_adapter_that_died_is_forgotten_too(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_unload, "LOST_S", 0.2)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(server.run_dir / "m-1-0.sock"))
    server.unloading = {("m", 1)}
    assert len(wait(server)) == 1
    assert server.calls == [("kill", "m", 1), ("load", "m", [1, 2]), ("load", "m", [2])]
    assert list(server.run_dir.glob("*.sock")) == []


@pytest.mark.usefixtures("adapter")
def test_of_a_model_that_is_gone_triton_says_nothing(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_unload, "LOST_S", 0.2)
    (server.root / "m").rename(server.root / "other")
    before = files(server.root)
    wait(server)
    assert server.calls == [("kill", "m", 1), ("load", "m", [1]), ("unload", "m")]
    assert files(server.root) == before


@pytest.mark.usefixtures("adapter")
def test_a_model_that_makes_room_is_not_loaded_again(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stuck_unload, "LOST_S", 0.2)
    before = files(server.root)
    wait(server, is_whole=True)
    assert server.calls == [("kill", "m", 1), ("load", "m", [1]), ("unload", "m")]
    assert files(server.root) == before


def test_what_ends_by_itself_is_waited_for(server: Any) -> None:
    looks = itertools.chain([{("m", 1)}] * 3, itertools.repeat(set()))
    server.versions_unloading = lambda: next(looks)
    assert wait(server) == []
    assert server.calls == []


def test_an_engine_that_frees_its_memory_is_waited_for(server: Any) -> None:
    server.engines = {("m", 1): 7, ("m", 2): 8}
    looks = itertools.chain([{("m", 1): 7, ("m", 2): 8}] * 3, itertools.repeat({("m", 2): 8}))
    server.engine_pids = lambda: next(looks)
    assert wait(server) == []
    assert server.calls == []


def test_it_is_not_waited_for_for_ever(server: Any) -> None:
    server.unloading = {("m", 1)}
    assert wait(server, timeout_s=0.2) == []
    server.is_away = True
    assert wait(server) == []
    server.is_away, server.exit_status = False, -9
    assert wait(server) == []


def test_what_could_not_be_loaded_is_forgotten_the_same_way(server: Any) -> None:
    before = files(server.root)
    forget(server, server.root, [("m", 3), ("new", 1), ("m", 1)], timeout_s=5)
    assert server.calls == [
        ("kill", "m", 1),
        ("kill", "m", 3),
        ("load", "m", [1, 2, 3]),
        ("load", "m", [2]),
        ("kill", "new", 1),
        ("load", "new", [1]),
        ("unload", "new"),
    ]
    assert files(server.root) == before


def test_a_config_that_is_not_ours_is_left_alone(server: Any) -> None:
    (server.root / "m/config.pbtxt").write_text('name: "m"\n')
    with pytest.raises(ServerError, match="without a list of versions"):
        forget(server, server.root, [("m", 1)], timeout_s=5)
    assert (server.root / "m/config.pbtxt").read_text() == 'name: "m"\n'
