# SPDX-License-Identifier: Apache-2.0
"""The control socket, both ends: what is said meanwhile, what comes back, and errors that keep their meaning."""

import contextlib
import json
import socket
import stat
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clients.server_control import ServerControl
from serving.triton.control import ControlSocket, Say
from trireme.base.errors import RequestError, ServerError, SpecError, Unavailable
from trireme.base.unix_socket import connect_socket


def double(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    say("thinking")
    return {"doubled": 2 * int(str(question["number"]))}


def refuse(question: Mapping[str, object], _say: Say) -> Mapping[str, object]:
    raise SpecError("not this one; take another", field="number", value=question["number"])


def break_down(_question: Mapping[str, object], _say: Say) -> Mapping[str, object]:
    raise KeyError("oops")


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    deep = tmp_path / ("a" * 100)  # longer than a socket's address may be
    deep.mkdir()
    found = deep / "control.sock"
    with contextlib.closing(ControlSocket(found, {"double": double, "refuse": refuse, "break": break_down})):
        yield found


def test_progress_is_told_and_the_answer_comes(path: Path) -> None:
    said: list[str] = []
    assert ServerControl(path, tell=said.append).ask("double", number=21) == {"doubled": 42}
    assert said == ["thinking"]


def test_a_socket_that_another_has_put_there_stays(path: Path) -> None:
    first = ControlSocket(path, {"double": double})
    with contextlib.closing(ControlSocket(path, {"double": double})):
        first.close()
        assert ServerControl(path).ask("double", number=2) == {"doubled": 4}
    assert not path.exists()


def test_only_its_owner_can_call(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_errors_keep_their_kind_and_facts(path: Path) -> None:
    control = ServerControl(path)
    with pytest.raises(SpecError, match="take another") as caught:
        control.ask("refuse", number=3)
    assert caught.value.facts == {"field": "number", "value": 3}
    with pytest.raises(RequestError, match="there are double, refuse, break"):
        control.ask("dance")
    with pytest.raises(ServerError, match="KeyError"):
        control.ask("break")


@pytest.mark.parametrize("line", [b"[]\n", b"{\n", b"", b"\xff\n"])
def test_what_is_no_question_is_refused_and_the_next_is_heard(path: Path, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        connect_socket(raw, path)
        raw.sendall(line)
        raw.shutdown(socket.SHUT_WR)
        assert "[INVALID_ARG]" in json.loads(raw.makefile().readline())["error"]
    assert ServerControl(path).ask("double", number=1) == {"doubled": 2}


def test_many_callers_at_a_time(path: Path) -> None:
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(ServerControl(path).ask("double", number=n)["doubled"]))
        for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == sorted(str(2 * n) for n in range(16))


def test_a_dead_servers_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unavailable, match="does not answer"):
        ServerControl(path).ask("double", number=1)
    with contextlib.closing(ControlSocket(path, {"double": double})):
        assert ServerControl(path).ask("double", number=1) == {"doubled": 2}
    assert not path.exists()
    with pytest.raises(Unavailable, match="no server has its control socket"):
        ServerControl(path).ask("double", number=1)
