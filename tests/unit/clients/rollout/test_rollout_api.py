# SPDX-License-Identifier: Apache-2.0
"""The answers of a rollout over HTTP: to questions, to mistakes, and to callers that are slow or gone."""

import contextlib
import gzip
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kept_outcomes import merge

from clients.rollout.records.rollout_plan import Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import RolloutApi
from trireme.base.errors import RequestError, ServingError, SpecError
from trireme.base.http_servers.http_thread import listen

pytestmark = pytest.mark.slow

LIMIT_BYTES = 16 << 20
SILENCE_S = 0.5
WHAT_THERE_IS = {"error": "there is GET /split, GET /judgement and POST /outcomes"}
BATCH = b'{"rollout": 1, "step": 1, "batch": "x", "outcomes": [{"arm": "candidate"}]}'


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def message(self) -> Any:
        return json.loads(self.body)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "rollouts.sqlite"
    plan = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.25, 0.5), lease_s=30.0, step_requests=1)
    with Store(path) as store:
        number = store.begin("chat", plan.text(), why="").id
        store.enter(number, Phase.RUNNING, why="", step=1)
    return path


@pytest.fixture
def front(path: Path) -> Iterator[RolloutApi]:
    front = RolloutApi(path, 1, "", merge, host="127.0.0.1", port=0, silence_s=SILENCE_S)
    with contextlib.closing(front):
        yield front


@pytest.fixture
def silent(front: RolloutApi, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    yield
    front.close()
    assert capfd.readouterr().err == ""
    assert caplog.get_records("call") == []


def port_of(front: RolloutApi) -> int:
    return int(front.url.rsplit(":", 1)[1])


def connected(front: RolloutApi) -> contextlib.closing[http.client.HTTPConnection]:
    return contextlib.closing(http.client.HTTPConnection("127.0.0.1", port_of(front), timeout=10))


def answer_of(connection: http.client.HTTPConnection) -> Answer:
    response = connection.getresponse()
    return Answer(response.status, dict(response.getheaders()), response.read())


def ask(front: RolloutApi, method: str, path: str, body: bytes | None = None) -> Answer:
    with connected(front) as connection:
        connection.request(method, path, body)
        return answer_of(connection)


def is_hung_up_on(connection: socket.socket) -> bool:
    """Return whether the other side soon ends the connection without a word."""
    connection.settimeout(10 * SILENCE_S)
    try:
        return connection.recv(100) == b""
    except ConnectionResetError:
        return True


def evidence(path: Path) -> object:
    with Store(path) as store:
        return store.evidence(1, 1)


def test_an_answer_is_json_of_a_length_and_its_connection_is_kept(front: RolloutApi) -> None:
    with connected(front) as connection:
        for question in ("/split", "/judgement", "/split?client=a"):
            connection.request("GET", question)
            answer = answer_of(connection)
            assert answer.status == 200
            assert answer.message["rollout"] == 1
            assert answer.headers["Content-Type"] == "application/json"
            assert answer.headers["Content-Length"] == str(len(answer.body))
            assert connection.sock is not None, "kept"
        connection.request("POST", "/outcomes?why=not", BATCH)
        assert answer_of(connection).message == {"is_counted": True}


def test_the_split_says_who_serves_and_for_how_long(front: RolloutApi) -> None:
    answer = ask(front, "GET", "/split").message
    assert {name: answer[name] for name in ("step", "salt", "stable_model", "lease_s")} == {
        "step": 1, "salt": "s", "stable_model": "ensemble", "lease_s": 30.0,
    }  # fmt: skip
    assert [(part["arm"], part["upto"]) for part in answer["slices"]] == [
        ("candidate", 0.5), ("baseline", 1.0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("query", "client"), [("", ""), ("?client=", ""), ("?client=a%20b&x=1", "a b"), (f"?client={'n' * 65}", "n" * 64)]
)
def test_a_client_is_known_by_the_start_of_its_name(
    front: RolloutApi, monkeypatch: pytest.MonkeyPatch, query: str, client: str
) -> None:
    asked = []
    monkeypatch.setattr(front, "split", lambda name="": asked.append(name))
    assert ask(front, "GET", f"/split{query}").status == 200
    assert asked == [client]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/"), ("GET", "/outcomes"), ("GET", "/split/"), ("POST", "/split"), ("POST", "/judgement"), ("POST", "/")],
)
def test_anything_else_is_told_what_there_is(front: RolloutApi, method: str, path: str) -> None:
    answer = ask(front, method, path, b"{}" if method == "POST" else None)
    assert (answer.status, answer.message) == (404, WHAT_THERE_IS)
    assert answer.headers["Content-Type"] == "application/json"


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_not_known(front: RolloutApi, method: str) -> None:
    assert ask(front, method, "/split").status == 501


@pytest.mark.parametrize("headers", [{"Content-Length": str(LIMIT_BYTES + 1)}, {"Transfer-Encoding": "chunked"}, {}])
def test_a_body_that_is_too_long_or_of_no_length_is_refused_unread(front: RolloutApi, headers: dict[str, str]) -> None:
    with connected(front) as connection:
        connection.putrequest("POST", "/outcomes")
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = answer_of(connection)
    assert answer.status == 413
    length = headers.get("Content-Length", "")
    assert answer.message == {"error": f"Content-Length must be bytes, {LIMIT_BYTES} at most, got {length!r}"}


def test_a_body_of_the_limit_is_read(front: RolloutApi, path: Path) -> None:
    body = BATCH + b" " * (LIMIT_BYTES - len(BATCH))
    assert ask(front, "POST", "/outcomes", body).message == {"is_counted": True}
    assert evidence(path)


def test_a_compressed_body_is_no_batch(front: RolloutApi, path: Path) -> None:
    with connected(front) as connection:
        connection.request("POST", "/outcomes", gzip.compress(BATCH), {"Content-Encoding": "gzip"})
        assert answer_of(connection).status in (400, 500)
    assert evidence(path) is None


def test_who_waits_to_be_told_to_go_on_is_told(front: RolloutApi) -> None:
    head = b"POST /outcomes HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n" % len(BATCH)
    with socket.create_connection(("127.0.0.1", port_of(front)), 10) as connection:
        connection.sendall(head)
        assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(BATCH)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"


def test_long_headers_are_read(front: RolloutApi) -> None:
    with connected(front) as connection:
        connection.request("GET", f"/split?x={'q' * 30_000}", headers={"X-Forwarded-Client-Cert": "c" * 30_000})
        assert answer_of(connection).status == 200


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (RequestError("step is wrong", field="step"), 400, "step is wrong"),
        (ServingError("the store is gone"), 500, "the store is gone"),
        (ZeroDivisionError("by zero"), 500, "ZeroDivisionError: by zero"),
    ],
)
def test_an_error_is_told_in_words(
    front: RolloutApi,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    error: Exception,
    status: int,
    text: str,
) -> None:
    def fail(_: bytes) -> bool:
        raise error

    monkeypatch.setattr(front, "count", fail)
    answer = ask(front, "POST", "/outcomes", b"{}")
    assert (answer.status, answer.message) == (status, {"error": text})
    assert ("Traceback" in capfd.readouterr().err) == isinstance(error, ZeroDivisionError)


def test_one_that_takes_long_holds_up_no_other(front: RolloutApi, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(front, "count", lambda _: goes_on.wait(20))
    with contextlib.ExitStack() as stack:
        stack.callback(goes_on.set)
        waiting = [stack.enter_context(connected(front)) for _ in range(100)]
        for connection in waiting:
            connection.request("POST", "/outcomes", b"{}")
        assert ask(front, "GET", "/split").status == 200
        goes_on.set()
        assert [answer_of(connection).message for connection in waiting] == [{"is_counted": True}] * 100


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"GET /split HTTP/1.1\r\nHost", id="half a head"),
        pytest.param(b"POST /outcomes HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n{", id="half a body"),
    ],
)
@pytest.mark.usefixtures("silent")
def test_who_goes_silent_is_hung_up_on(front: RolloutApi, path: Path, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port_of(front)), 10) as connection:
        connection.sendall(sent)
        assert ask(front, "GET", "/split").status == 200, "others need not wait for that"
        assert is_hung_up_on(connection)
    assert evidence(path) is None


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("sent", [0, 1, len(BATCH) - 1])
def test_who_goes_in_the_middle_is_no_error_of_the_rollout(front: RolloutApi, path: Path, sent: int) -> None:
    head = b"POST /outcomes HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BATCH)
    for is_reset in (False, True):
        with socket.create_connection(("127.0.0.1", port_of(front)), 10) as connection:
            connection.sendall(head + BATCH[:sent])
            time.sleep(0.05)
            if is_reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ask(front, "GET", "/split").status == 200
    time.sleep(0.1)
    assert evidence(path) is None


def test_a_kept_connection_that_goes_silent_is_hung_up_on(front: RolloutApi) -> None:
    with connected(front) as connection:
        connection.request("GET", "/split")
        answer_of(connection)
        assert is_hung_up_on(connection.sock)


def test_a_slow_body_that_keeps_coming_is_read(front: RolloutApi, path: Path) -> None:
    head = b"POST /outcomes HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(BATCH)
    with socket.create_connection(("127.0.0.1", port_of(front)), 10) as connection:
        connection.sendall(head)
        for at in range(0, len(BATCH), 20):
            connection.sendall(BATCH[at : at + 20])
            time.sleep(SILENCE_S / 2)
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
    assert evidence(path)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize(
    "noise",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9\r\n\r\n",
        b"POST /outcomes HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"GET /split HTTP/1.1\r\n%s\r\n\r\n" % (b"x" * 70_000),
    ],
    ids=["TLS", "no path", "another version", "no length", "an endless line"],
)
def test_what_is_no_http_is_refused_and_fills_no_log(front: RolloutApi, noise: bytes) -> None:
    for _ in range(2):
        with socket.create_connection(("127.0.0.1", port_of(front)), 10) as connection:
            connection.sendall(noise)
            with contextlib.suppress(ConnectionResetError):
                connection.recv(1000)
    assert ask(front, "GET", "/split").status == 200


def test_a_batch_whose_client_has_gone_counts(front: RolloutApi, path: Path) -> None:
    with connected(front) as connection:
        connection.request("POST", "/outcomes", BATCH)
    end_s = time.monotonic() + 10
    while evidence(path) is None:
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_it_listens_until_it_is_closed_and_again_at_the_same_port(front: RolloutApi, path: Path) -> None:
    port = port_of(front)
    assert ask(front, "GET", "/split").status == 200
    front.close()
    front.close()
    with pytest.raises(ConnectionRefusedError):
        ask(front, "GET", "/split")
    with contextlib.closing(RolloutApi(path, 1, "", merge, host="127.0.0.1", port=port)) as again:
        assert ask(again, "GET", "/split").status == 200
        assert again.url == f"http://127.0.0.1:{port}"


def test_a_port_that_is_taken_is_named(front: RolloutApi, path: Path) -> None:
    taken = port_of(front)
    why = f"port {taken} of host 127.0.0.1 cannot be used .Address already in use.; choose another with --port"
    with pytest.raises(SpecError, match=why):
        RolloutApi(path, 1, "", merge, host="127.0.0.1", port=taken)
    with pytest.raises(SpecError, match=r"host 192\.0\.2\.1 cannot be used"):
        listen("192.0.2.1", 0)
    listen("127.0.0.1", 0).close()


def test_all_addresses_of_ipv6_are_those_of_ipv4_too(path: Path) -> None:
    with contextlib.closing(RolloutApi(path, 1, "", merge, host="::", port=0)) as front:
        assert front.url.startswith("http://[::]:")
        assert ask(front, "GET", "/split").status == 200


def test_many_that_connect_in_the_same_moment_are_answered(front: RolloutApi) -> None:
    with contextlib.ExitStack() as stack:
        asking = [stack.enter_context(connected(front)) for _ in range(120)]
        for number, connection in enumerate(asking):
            connection.request("GET", f"/split?client={number}")
        assert {answer_of(connection).status for connection in asking} == {200}
