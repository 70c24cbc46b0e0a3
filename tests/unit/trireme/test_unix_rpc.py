# SPDX-License-Identifier: Apache-2.0
"""Calls over a Unix socket: whatever one side does, the other hears an error in time, and the next call is answered."""

import contextlib
import json
import logging
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trireme.base import unix_rpc
from trireme.base.errors import RequestError, ServerError, SpecError
from trireme.base.unix_rpc import MAX_BYTES, Message, RpcServer, Say, call
from trireme.base.unix_socket import UnixListener, connect_socket

WAIT_S = 10.0
REQUEST = b'{"op": "double", "number": 2}\n'
ANSWER = b'{"say": "thinking"}\n{"done": {"doubled": 4}}\n'


def double(request: Message, say: Say) -> Message:
    say("thinking")
    return {"doubled": 2 * int(str(request["number"]))}


def refuse(request: Message, _say: Say) -> Message:
    raise SpecError("not this one; take another", field="number", value=request["number"])


def break_down(_request: Message, _say: Say) -> Message:
    raise KeyError("oops")


HANDLERS = {"double": double, "refuse": refuse, "break": break_down}


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    deep = tmp_path / ("a" * 100)  # longer than a socket's address may be
    deep.mkdir()
    found = deep / f"{'b' * 100}.sock"
    with contextlib.closing(RpcServer(found, HANDLERS)):
        yield found
    assert list(deep.iterdir()) == []
    wait_until(lambda: not any(thread.name.startswith("rpc ") for thread in threading.enumerate()))


def doubles(path: Path, number: int = 2) -> bool:
    return call(path, "double", {"number": number}, timeout_s=WAIT_S) == {"doubled": 2 * number}


# The server's side


def test_progress_is_told_and_the_answer_comes(path: Path) -> None:
    said: list[str] = []
    assert call(path, "double", {"number": 21}, timeout_s=WAIT_S, tell=said.append) == {"doubled": 42}
    assert said == ["thinking"]


def test_the_messages_are_lines_of_json_that_other_versions_read(path: Path) -> None:
    with raw(path) as connection:
        connection.sendall(REQUEST)
        assert connection.makefile("rb").read() == ANSWER


def test_errors_keep_their_kind_and_facts(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(SpecError, match="take another") as caught:
        call(path, "refuse", {"number": 3}, timeout_s=WAIT_S)
    assert caught.value.facts == {"field": "number", "value": 3}
    with pytest.raises(RequestError, match="'dance' is not known; there are double, refuse, break"):
        call(path, "dance", timeout_s=WAIT_S)
    assert caplog.text == ""
    with pytest.raises(ServerError, match=r"KeyError.*the server's log says more"):
        call(path, "break", timeout_s=WAIT_S)
    assert "oops" in caplog.text


@pytest.mark.parametrize(
    "request_",
    [
        b"",
        b"\n",
        b"[]\n",
        b"{\n",
        b"\xff\n",
        b"{}",
        b"[" * 100_000 + b"\n",
        b"{}\n",
        b'{"op": ["double"]}\n',
    ],
    ids=lambda text: repr(text[:20]),
)
def test_what_is_no_request_is_refused_and_the_next_is_answered(path: Path, request_: bytes) -> None:
    with raw(path) as connection:
        connection.sendall(request_)
        connection.shutdown(socket.SHUT_WR)
        said = [json.loads(line) for line in connection.makefile("rb")]
    assert len(said) == 1
    assert "[INVALID_ARG" in said[0]["error"]
    assert doubles(path)


def test_a_connection_carries_one_call(path: Path) -> None:
    with raw(path) as connection:
        connection.sendall(REQUEST * 2)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # it hangs up with the second unread
            while data := connection.recv(1000):
                received += data
    assert received == ANSWER


def test_a_request_that_is_too_long_is_refused_by_both_sides(path: Path) -> None:
    with pytest.raises(RequestError, match=f"may have {MAX_BYTES} bytes, this one has 10"):
        call(path, "double", {"number": "1" * MAX_BYTES}, timeout_s=WAIT_S)
    with raw(path) as connection:
        with contextlib.suppress(ConnectionError):  # it does not read all
            connection.sendall(b"x" * 2 * MAX_BYTES)
        assert "longer than" in json.loads(connection.makefile("rb").readline())["error"]
    with pytest.raises(RequestError, match="op 'xxx"):  # an error repeats what is wrong, as far as may be
        call(path, "x" * 30_000, timeout_s=WAIT_S)
    with pytest.raises(ServerError):
        call(path, "x" * (MAX_BYTES - 100), timeout_s=WAIT_S)
    assert doubles(path)


def test_an_answer_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with contextlib.closing(
        RpcServer(path, {"long": lambda *_: {"a": "x" * MAX_BYTES}, "odd": lambda *_: {"a": path}})
    ):
        with pytest.raises(RequestError, match=f"may have {MAX_BYTES} bytes"):
            call(path, "long", timeout_s=WAIT_S)
        with pytest.raises(ServerError, match="not JSON serializable"):
            call(path, "odd", timeout_s=WAIT_S)


@pytest.mark.parametrize("length", range(len(REQUEST) + 1))
def test_a_caller_may_go_after_any_byte(path: Path, length: int) -> None:
    with raw(path) as connection:
        connection.sendall(REQUEST[:length])
    assert doubles(path)


def test_callers_that_say_nothing_keep_nobody_waiting(path: Path) -> None:
    with contextlib.ExitStack() as held:
        silent = [held.enter_context(raw(path)) for _ in range(20)]
        begun_s = time.monotonic()
        assert doubles(path)
        assert time.monotonic() - begun_s < unix_rpc._TAKE_S / 2
        for connection in silent:
            connection.shutdown(socket.SHUT_WR)
            assert b"hung up" in connection.makefile("rb").readline()


def test_a_request_that_does_not_come_is_refused_in_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unix_rpc, "_TAKE_S", 0.1)
    with raw(path) as connection:
        connection.sendall(REQUEST[:5])
        assert b"timed out" in connection.makefile("rb").readline()


def test_who_does_not_read_is_given_up_and_what_was_asked_for_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unix_rpc, "_TAKE_S", 0.2)
    caplog.set_level(logging.INFO)
    is_done = threading.Event()

    def work(_request: Message, say: Say) -> Message:
        for _ in range(1000):
            say("x" * 50_000)
        is_done.set()
        return {}

    path = tmp_path / "s.sock"
    with contextlib.closing(RpcServer(path, {"work": work})), raw(path) as connection:
        connection.sendall(b'{"op": "work"}\n')
        assert is_done.wait(WAIT_S)
        wait_until(lambda: "has gone before the answer" in caplog.text)
        lines = connection.makefile("rb").read().split(b"\n")
    assert {json.loads(line)["say"] for line in lines[:-1]} == {"x" * 50_000}
    assert b"done" not in lines[-1], "part of one message was followed by another"
    assert "Traceback" not in caplog.text


def test_a_caller_that_does_not_wait_for_the_answer_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    has_gone = threading.Event()

    def answer_late(_request: Message, _say: Say) -> Message:
        assert has_gone.wait(WAIT_S)
        return {}

    path = tmp_path / "s.sock"
    with contextlib.closing(RpcServer(path, {"late": answer_late})):
        with raw(path) as connection:
            connection.sendall(b'{"op": "late"}\n')
        has_gone.set()
        wait_until(lambda: "has gone before the answer" in caplog.text)
    assert "Traceback" not in caplog.text


def test_many_callers_at_once_are_all_answered(path: Path) -> None:
    with ThreadPoolExecutor(300) as callers:
        assert all(callers.map(lambda number: doubles(path, number), range(1000)))


def test_each_of_many_long_calls_has_a_thread(tmp_path: Path) -> None:
    everybody = threading.Barrier(40)

    def meet(_request: Message, _say: Say) -> Message:
        everybody.wait(WAIT_S)
        return {}

    path = tmp_path / "s.sock"
    with contextlib.closing(RpcServer(path, {"meet": meet})), ThreadPoolExecutor(40) as callers:
        for _ in range(2):
            assert list(callers.map(lambda _: call(path, "meet", timeout_s=WAIT_S), range(40))) == [{}] * 40
        wait_until(lambda: sum(thread.name == "rpc s.sock" for thread in threading.enumerate()) == 2)


def test_a_server_answers_while_no_thread_can_be_started(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    assert all(doubles(path) for _ in range(5))


def test_a_server_without_descriptors_answers_when_there_are_some_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_some = threading.Event()
    accept = socket.socket.accept

    def accept_later(listener: socket.socket) -> object:
        if not has_some.is_set():
            raise OSError(24, "Too many open files")
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", accept_later)
    assert doubles(path)  # by the thread that waited already
    with raw(path) as connection:
        connection.sendall(REQUEST)
        wait_until(lambda: "takes no call now: [Errno 24] Too many open files" in caplog.text)
        has_some.set()
        assert connection.makefile("rb").read() == ANSWER


def test_a_closed_server_answers_what_it_has_taken_and_nothing_more(tmp_path: Path) -> None:
    is_taken, may_end = threading.Event(), threading.Event()

    def wait(_request: Message, _say: Say) -> Message:
        is_taken.set()
        assert may_end.wait(WAIT_S)
        return {"is": "done"}

    path = tmp_path / "s.sock"
    server = RpcServer(path, {"wait": wait})
    with ThreadPoolExecutor() as callers:
        taken = callers.submit(call, path, "wait", timeout_s=WAIT_S)
        assert is_taken.wait(WAIT_S)
        server.close()
        server.close()
        with pytest.raises(FileNotFoundError):
            call(path, "wait", timeout_s=WAIT_S)
        may_end.set()
        assert taken.result(WAIT_S) == {"is": "done"}


# The caller's side


def test_the_callers_errors_tell_a_dead_server_from_none(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with pytest.raises(FileNotFoundError):
        call(path, "double", timeout_s=WAIT_S)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with pytest.raises(ConnectionRefusedError):
        call(path, "double", timeout_s=WAIT_S)


def test_a_hung_server_is_given_up_in_time(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with closing_listener(path):  # takes connections, and nothing more
        with pytest.raises(TimeoutError):
            call(path, "double", timeout_s=0.05)
        with pytest.raises(TimeoutError):
            call(path, "double", {"number": "1" * (MAX_BYTES - 100)}, timeout_s=0.05)


@pytest.mark.parametrize(
    "answer",
    [b"\n", b"[]\n", b"{}\n", b"\xff\n", b'{"done": 1}\n', b'{"error": {}}\n', b"HTTP/1.1 400 Bad Request\r\n"],
)
def test_what_is_no_answer_is_an_error(tmp_path: Path, answer: bytes) -> None:
    with answering(tmp_path / "s.sock", answer), pytest.raises(ConnectionAbortedError, match=r"what came|is no answer"):
        call(tmp_path / "s.sock", "double", timeout_s=WAIT_S)


def test_an_answer_without_end_is_an_error(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "s.sock", b"x" * 2 * MAX_BYTES),
        pytest.raises(ConnectionAbortedError, match=f"longer than {MAX_BYTES} bytes"),
    ):
        call(tmp_path / "s.sock", "double", timeout_s=WAIT_S)


@pytest.mark.parametrize("length", range(len(ANSWER)))
def test_a_server_may_go_after_any_byte(tmp_path: Path, length: int) -> None:
    said: list[str] = []
    with answering(tmp_path / "s.sock", ANSWER[:length]), pytest.raises(ConnectionResetError):
        call(tmp_path / "s.sock", "double", timeout_s=WAIT_S, tell=said.append)
    assert said == ["thinking"] * (length > ANSWER.index(b"\n"))


@pytest.mark.parametrize("size", [1, 7, len(ANSWER)])
def test_messages_may_come_in_any_pieces(tmp_path: Path, size: int) -> None:
    with answering(tmp_path / "s.sock", ANSWER, size=size):
        assert call(tmp_path / "s.sock", "double", timeout_s=WAIT_S) == {"doubled": 4}


# The socket


def test_only_processes_of_its_owner_can_call(path: Path) -> None:
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_socket_that_another_has_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    first = RpcServer(path, HANDLERS)
    with contextlib.closing(RpcServer(path, HANDLERS)):
        first.close()
        assert doubles(path)
    assert not path.exists()


def test_nobody_finds_a_socket_that_does_not_listen(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    has_ended = threading.Event()

    def connect() -> int:
        num = 0
        while not has_ended.is_set():
            # As many wait as may where nobody takes them; what must not come is a ConnectionRefusedError.
            with contextlib.suppress(FileNotFoundError, BlockingIOError), raw(path):
                num += 1
        return num

    with ThreadPoolExecutor() as threads:
        connecting = threads.submit(connect)
        listeners = [UnixListener(path) for _ in range(200)]  # each in the place of the one before, which still listens
        has_ended.set()
        assert connecting.result(WAIT_S) > 0
        for listener in listeners:
            listener.socket.close()


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        RpcServer(tmp_path / "none" / "s.sock", HANDLERS)


@contextlib.contextmanager
def raw(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(WAIT_S)
        connect_socket(connection, path)
        yield connection


@contextlib.contextmanager
def closing_listener(path: Path) -> Iterator[socket.socket]:
    listener = UnixListener(path)
    with listener.socket:
        yield listener.socket


@contextlib.contextmanager
def answering(path: Path, answer: bytes, *, size: int = 1 << 30) -> Iterator[None]:
    """Yield a server that takes one request, whatever it is, answers with these bytes and hangs up."""

    def answer_one() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(ConnectionError):
            connection.makefile("rb").readline()
            for begin in range(0, len(answer), size):
                connection.sendall(answer[begin : begin + size])

    with closing_listener(path) as listener, ThreadPoolExecutor(1) as threads:
        answered = threads.submit(answer_one)
        yield
        answered.result(WAIT_S)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s, "did not happen in time"
        time.sleep(0.005)
