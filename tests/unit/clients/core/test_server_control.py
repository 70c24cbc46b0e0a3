# SPDX-License-Identifier: Apache-2.0
"""Commands on the control socket: answers, and errors that say what to do."""

import contextlib
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from clients.server_control import ServerControl
from trireme.base.errors import SpecError, Unavailable
from trireme.base.unix_rpc import RpcServer, Say


def double(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    say("thinking")
    return {"doubled": 2 * int(str(question["number"]))}


def refuse(question: Mapping[str, object], _say: Say) -> Mapping[str, object]:
    raise SpecError("not this one; take another", field="number", value=question["number"])


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "control.sock"
    with contextlib.closing(RpcServer(found, {"double": double, "refuse": refuse})):
        yield found


def test_progress_is_told_and_the_answer_comes(path: Path) -> None:
    said: list[str] = []
    assert ServerControl(path, tell=said.append).ask("double", number=21) == {"doubled": 42}
    assert said == ["thinking"]


def test_what_the_server_says_against_it_keeps_its_kind_and_facts(path: Path) -> None:
    with pytest.raises(SpecError, match="take another") as caught:
        ServerControl(path).ask("refuse", number=3)
    assert caught.value.facts == {"field": "number", "value": 3}


def test_a_dead_servers_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(Unavailable, match=r"does not answer.*start it with `trireme serve` if it has ended") as caught:
        ServerControl(path).ask("double", number=1)
    assert caught.value.facts == {"reason": "unreachable"}
    with contextlib.closing(RpcServer(path, {"double": double})):
        assert ServerControl(path).ask("double", number=1) == {"doubled": 2}
    assert not path.exists()
    with pytest.raises(Unavailable, match="no server has its control socket") as caught:
        ServerControl(path).ask("double", number=1)
    assert caught.value.facts == {"reason": "unreachable"}


@pytest.mark.parametrize(
    ("answer", "reason", "match"),
    [
        (b"", "restarting", "went away before it was done"),
        (b'{"say": "loading"}\n{"do', "restarting", "went away before it was done"),
        (b'{"type": "done"}\n', "unreachable", "does not answer: it sent {'type': 'done'}, which is no answer"),
    ],
)
def test_a_server_that_does_not_answer_is_an_error(tmp_path: Path, answer: bytes, reason: str, match: str) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer_one() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(answer)

        thread = threading.Thread(target=answer_one)
        thread.start()
        with pytest.raises(Unavailable, match=match) as caught:
            ServerControl(path).ask("double", number=1)
        assert caught.value.facts == {"reason": reason}
        thread.join()
