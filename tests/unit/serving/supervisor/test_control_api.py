# SPDX-License-Identifier: Apache-2.0
"""The control of a server from another machine: the same operations as over its socket, for callers with a key."""

import contextlib
import http.client
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from remote_site import KEY, RemoteSite
from text_bench import wait_until

from clients.access import Access
from serving.supervisor import control_api, running_operations
from serving.supervisor.control_api import ControlApi
from trireme.base.errors import AccessDenied, RequestError, ServerError, ServingError, SpecError, Unavailable
from trireme.base.http_servers import http_access
from trireme.base.http_servers.http_access import AcceptedKeys, HttpAccess
from trireme.base.unix_rpc import Say

WITH_KEY = {"Authorization": f"Bearer {KEY}"}


def double(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    say("doubling")
    return {"twice": 2 * int(str(question["number"])), "asked": sorted(question)}


def refuse(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    del question, say
    raise SpecError("there is no room", field="engine.num_kv_blocks", value=7)


def break_down(question: Mapping[str, object], say: Say) -> Mapping[str, object]:
    del question, say
    raise ZeroDivisionError


HANDLERS = {"double": double, "refuse": refuse, "break_down": break_down}


class Load:
    """An operation that takes until the test lets it end."""

    def __init__(self) -> None:
        self.num_begun, self.num_ended = 0, 0
        self.may_end = threading.Event()

    def __call__(self, _: Mapping[str, object], say: Say) -> Mapping[str, object]:
        self.num_begun += 1
        self.may_end.wait(30)
        say("loaded")
        self.num_ended += 1
        return {"is_loaded": True}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RemoteSite]:
    site = RemoteSite(tmp_path)
    yield site
    site.close()


@pytest.fixture
def load() -> Iterator[Load]:
    load = Load()
    yield load
    load.may_end.set()


def post(api: ControlApi, operation: str, body: bytes = b"{}", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=10)
    with contextlib.closing(connection):
        connection.request("POST", f"/control/{operation}", body, WITH_KEY | headers)
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_an_operation_says_what_it_does_and_answers(site: RemoteSite) -> None:
    said: list[str] = []
    control = site.control(site.serve(HANDLERS), tell=said.append)
    assert control.ask("double", number=21) == {"twice": 42, "asked": ["number"]}
    assert said == ["doubling"]


def test_an_error_arrives_as_it_was_raised(site: RemoteSite) -> None:
    control = site.control(site.serve(HANDLERS))
    with pytest.raises(SpecError, match="there is no room") as refusal:
        control.ask("refuse")
    assert refusal.value.facts["field"] == "engine.num_kv_blocks"
    with pytest.raises(ServingError, match="ZeroDivisionError"):
        control.ask("break_down")
    with pytest.raises(RequestError, match="operation 'sing' is not known; there are double, refuse, break_down"):
        control.ask("sing")


def test_an_answer_that_cannot_be_written_is_an_error_and_one_of_megabytes_is_not(site: RemoteSite) -> None:
    handlers = {
        "odd": lambda *_: {"it": object()},
        "no_mapping": lambda *_: 7,
        "large": lambda *_: {"it": "x" * 5_000_000},
    }
    control = site.control(site.serve(handlers), silence_s=5.0)
    for operation in ("odd", "no_mapping"):
        with pytest.raises(ServerError, match="the server's log says more"):
            control.ask(operation)
    assert len(str(control.ask("large")["it"])) == 5_000_000


def test_a_long_operation_is_told_to_be_alive(site: RemoteSite, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_api, "ALIVE_S", 0.05)
    api = site.serve({"load": load})
    threading.Timer(1.5, load.may_end.set).start()
    assert site.control(api, silence_s=1.0).ask("load") == {"is_loaded": True}
    load.may_end.clear()
    monkeypatch.setattr(control_api, "ALIVE_S", 60.0)
    with pytest.raises(Unavailable, match="went away before it was done"):
        site.control(api, silence_s=0.5).ask("load")


def test_what_was_begun_is_done_though_the_caller_has_gone_and_is_joined_when_asked_for_again(
    site: RemoteSite, load: Load
) -> None:
    api = site.serve({"load": load, "double": double})
    for _ in range(8):  # more than a pool has threads
        connection = http.client.HTTPConnection("127.0.0.1", api.port, timeout=5)
        connection.request("POST", "/control/load", b'{"release": 2}', WITH_KEY)
        wait_until(lambda: load.num_begun == 1)
        connection.close()
    assert site.control(api).ask("double", number=1)["twice"] == 2
    said: list[str] = []
    found: list[Mapping[str, object]] = []
    asking = threading.Thread(target=lambda: found.append(site.control(api, tell=said.append).ask("load", release=2)))
    asking.start()
    wait_until(lambda: bool(said))
    load.may_end.set()
    asking.join(10)
    assert (found, said) == ([{"is_loaded": True}], ["this is being done already", "loaded"])
    assert (load.num_begun, load.num_ended) == (1, 1)


def test_no_more_operations_run_at_a_time_than_a_few(site: RemoteSite, load: Load) -> None:
    api = site.serve({"load": load, "double": double})
    connections = []
    for number in range(running_operations.MOST_RUNNING):
        connections.append(http.client.HTTPConnection("127.0.0.1", api.port, timeout=5))
        connections[-1].request("POST", "/control/load", b'{"release": %d}' % number, WITH_KEY)
    wait_until(lambda: load.num_begun == len(connections))
    with pytest.raises(Unavailable, match="16 operations run, and no more may at a time") as refusal:
        site.control(api).ask("double", number=1)
    assert refusal.value.facts["reason"] == "busy"
    load.may_end.set()
    for connection in connections:
        connection.close()
    wait_until(lambda: load.num_ended == len(connections))
    wait_until(lambda: post(api, "double", b'{"number": 1}')[0] == 200)


def test_a_server_that_ends_waits_for_no_operation_and_its_callers_hear_of_it(site: RemoteSite, load: Load) -> None:
    api = site.serve({"load": load})
    found: list[ServingError] = []

    def ask() -> None:
        try:
            site.control(api).ask("load")
        except ServingError as exc:
            found.append(exc)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: load.num_begun == 1)
    begin_s = time.monotonic()
    api.close()
    assert time.monotonic() - begin_s < 2
    asking.join(20)
    assert [type(each) for each in found] == [Unavailable]
    with pytest.raises(Unavailable, match="does not answer"):
        site.control(api).ask("double", number=1)
    load.may_end.set()  # it says "loaded" where nobody listens any more
    wait_until(lambda: load.num_ended == 1)


def test_only_callers_with_the_key_are_answered_over_tls(site: RemoteSite, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    pair = authority.server()
    api = site.serve(HANDLERS, host="0.0.0.0", cert_file=pair.cert, key_file=pair.key)
    trusted = Access(ca_file=str(authority.ca), token_file=str(site.keys))
    assert site.control(api, trusted).ask("double", number=2)["twice"] == 4
    wrong = tmp_path / "wrong"
    wrong.write_text("another-key-of-16-chars\n")
    with pytest.raises(AccessDenied, match=r"got no key: give --server-token-file$"):
        site.control(api, Access(ca_file=trusted.ca_file)).ask("double", number=2)
    with pytest.raises(AccessDenied, match=f"the key of --server-token-file {wrong}"):
        site.control(api, Access(ca_file=trusted.ca_file, token_file=str(wrong))).ask("double", number=2)
    with pytest.raises(AccessDenied, match="name the right authority's certificate with --server-ca-file"):
        site.control(api, Access(is_tls=True, token_file=str(site.keys))).ask("double", number=2)
    with pytest.raises(Unavailable, match=r"does not answer|went away"):  # a client without TLS
        site.control(api).ask("double", number=2)


def test_a_key_is_accepted_until_the_file_has_another_one(site: RemoteSite) -> None:
    api = site.serve(HANDLERS)
    before = site.keys.read_text()
    assert post(api, "double", b'{"number": 1}')[0] == 200
    site.keys.write_text("a-new-key-of-16-or-more\n")
    assert post(api, "double", b'{"number": 1}')[0] == 401
    assert site.control(api).ask("double", number=3)["twice"] == 6
    site.keys.write_text("short\n")
    with pytest.raises(Unavailable, match="keys of this server cannot be read now"):
        site.control(api, Access(token_file=str(site.keys))).ask("double", number=1)
    site.keys.write_text(before)
    assert post(api, "double", b'{"number": 1}')[0] == 200


def test_keys_are_read_again_only_when_their_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys"
    num_read = 0
    read = HttpAccess.keys

    def counted(self: HttpAccess) -> frozenset[bytes] | None:
        nonlocal num_read
        num_read += 1
        return read(self)

    monkeypatch.setattr(HttpAccess, "keys", counted)
    path.write_text(f"{KEY}\n")
    later_s = time.time() + 60
    keys = AcceptedKeys(HttpAccess(token_file=path), now_s=lambda: later_s)
    assert [keys.accepts(f"Bearer {KEY}") for _ in range(5)] == [True] * 5
    assert num_read == 1
    other = tmp_path / "other"
    other.write_text("a-longer-key-than-before\n")
    for how in (lambda: other.replace(path), lambda: path.write_text(f"{KEY}\n"), path.unlink):  # as Kubernetes does
        was_accepted = keys.accepts(f"Bearer {KEY}")
        how()
        if path.exists():
            assert keys.accepts(f"Bearer {KEY}") is not was_accepted
    with pytest.raises(SpecError, match="cannot be read"):
        keys.accepts(f"Bearer {KEY}")
    path.write_text(f"{KEY}\n")
    now = AcceptedKeys(HttpAccess(token_file=path))
    num_read = 0
    assert [now.accepts(f"Bearer {KEY}") for _ in range(3)] == [True] * 3
    assert num_read == 3, "a file of this second may change again without a sign"
    assert http_access._CLOCK_S >= 2


def test_a_key_is_always_needed_and_tls_where_other_machines_reach_it(site: RemoteSite) -> None:
    with pytest.raises(RequestError, match=r"no key that they would need; give --remote-token-file"):
        ControlApi(HANDLERS, host="127.0.0.1", port=0, access=HttpAccess(options="--remote-"))
    with pytest.raises(RequestError, match=r"--remote-host 0.0.0.0 .* give --remote-cert-file and --remote-key-file"):
        site.serve(HANDLERS, host="0.0.0.0")


def test_a_port_that_is_taken_names_its_option(site: RemoteSite) -> None:
    api = site.serve(HANDLERS)
    with pytest.raises(SpecError, match="choose another with --remote-port"):
        site.serve(HANDLERS, port=api.port)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("double", b"[]", 400),
        ("double", b"{", 400),
        ("double", b"[" * 100_000, 400),
        ("double", b" " * 2_000_000, 400),
        ("", b"{}", 404),
        ("sing", b"{}", 404),
    ],
    ids=["no object", "no JSON", "deep", "long", "no operation", "unknown"],
)
def test_a_malformed_request_is_refused(site: RemoteSite, path: str, body: bytes, status: int) -> None:
    api = site.serve(HANDLERS)
    assert post(api, path, body)[0] == status
    assert post(api, "double", b'{"number": 1}')[0] == 200


def test_a_stranger_s_body_is_not_read(site: RemoteSite) -> None:
    api = site.serve(HANDLERS)
    with socket.create_connection(("127.0.0.1", api.port), 5) as stranger:
        stranger.sendall(b"POST /control/double HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert stranger.recv(100).startswith(b"HTTP/1.1 401")
        stranger.settimeout(5)
        with contextlib.suppress(ConnectionResetError):
            while stranger.recv(1000):
                pass


def num_descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_strangers_who_hold_connections_are_only_so_many(
    site: RemoteSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "_MAX_CONNECTIONS", 5)
    pair = Authority(tmp_path / "authority").server()
    api = site.serve(HANDLERS, cert_file=pair.cert, key_file=pair.key)
    before = num_descriptors()
    context: Any = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as held:
        for _ in range(3):
            plain = held.enter_context(socket.create_connection(("127.0.0.1", api.port), 5))
            held.enter_context(context.wrap_socket(plain))
        for _ in range(40):  # no handshake at all
            held.enter_context(socket.create_connection(("127.0.0.1", api.port), 5))
        time.sleep(0.3)
        assert num_descriptors() - before <= 43 + 5
    trusted = Access(ca_file=str(tmp_path / "authority/ca.crt"), token_file=str(site.keys))

    def is_answered() -> bool:
        with contextlib.suppress(Unavailable):
            return bool(site.control(api, trusted).ask("double", number=1))
        return False

    wait_until(is_answered)
