# SPDX-License-Identifier: Apache-2.0
"""The caller of a server's control on another machine: which addresses it takes, and whom it tells its key."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from remote_site import KEY, RemoteSite

from clients import remote_control
from clients.access import NO_ACCESS, Access
from clients.control_address import control_address
from clients.remote_control import RemoteControl
from trireme.base.errors import AccessDenied, RequestError, ServerError, SpecError, Unavailable


@pytest.fixture
def site(tmp_path: Path) -> Iterator[RemoteSite]:
    site = RemoteSite(tmp_path)
    yield site
    site.close()


class Elsewhere(BaseHTTPRequestHandler):
    """A server that sends its callers to another address, or answers what is no answer."""

    seen: list[str]
    status = 307
    body = b""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append(f"{self.path} {self.headers['Authorization']}")
        self.send_response(self.status)
        self.send_header("Location", "/stolen")
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[tuple[int, type[Elsewhere]]]:
    handler = type("Handler", (Elsewhere,), {"seen": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], handler
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "url",
    [
        "gpu-3", "gpu-3:8004", "https://gpu-3", "https://:8004", "https://gpu-3:0", "https://gpu-3:70000", "ftp://gpu-3:1",
        "https://gpu-3:x", "https://gpu-3:8004/control", "https://gpu-3:8004?x", "https://gpu 3:8004", "https://[gpu:8004",
        "https://gpu-3:8004\r\nX: y", "",
    ],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_its_name_at_once(url: str) -> None:
    with pytest.raises(
        RequestError, match=r"https://HOST:PORT with the port of `trireme serve --remote-port`"
    ) as refusal:
        RemoteControl(url, Access())
    assert repr(url) in refusal.value.message


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(RequestError) as refusal:
        RemoteControl("https://me:secret@gpu-3:8004", Access())
    assert "secret" not in str(refusal.value)


def test_an_address_has_a_host_and_a_port() -> None:
    assert control_address("https://gpu-3.example:8004/").url == "https://gpu-3.example:8004"
    assert control_address("https://[::1]:8004").host == "::1"
    assert control_address("https://[::1]:8004").url == "https://[::1]:8004"


def test_a_key_is_sent_without_tls_on_this_machine_alone() -> None:
    with pytest.raises(RequestError, match="has no TLS, and the key could be read on its way"):
        RemoteControl("http://gpu-3:8004", Access())
    for host in ("127.0.0.1", "localhost", "[::1]"):
        RemoteControl(f"http://{host}:8004", Access())


def test_a_redirect_is_not_followed(site: RemoteSite, elsewhere: tuple[int, type[Elsewhere]]) -> None:
    port, handler = elsewhere
    for status in (301, 302, 303, 307, 308):
        handler.status = status
        with pytest.raises(ServerError, match="sends its callers to /stolen, and a key is sent to no address"):
            RemoteControl(f"http://127.0.0.1:{port}", site.access).ask("status")
    assert handler.seen == [f"/control/status Bearer {KEY}"] * 5


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "went away before it was done"),
        (b'{"alive": true}\n', "went away before it was done"),
        (b'{"done": {}', "went away"),
        (b"<html>\n", "is not JSON"),
        (b'{"what": 1}\n', "which is no answer"),
        (b"[" * 100_000 + b"\n", "is not JSON"),
    ],
    ids=["nothing", "no end", "a part", "a page", "another object", "deep"],
)
def test_what_is_no_answer_is_a_server_that_is_away(
    site: RemoteSite, elsewhere: tuple[int, type[Elsewhere]], body: bytes, said: str
) -> None:
    port, handler = elsewhere
    handler.status, handler.body = 200, body
    with pytest.raises(Unavailable, match=said):
        RemoteControl(f"http://127.0.0.1:{port}", site.access).ask("status")


def test_a_port_at_which_nobody_speaks_is_given_up_soon(site: RemoteSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_control, "_CONNECT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        begin_s = time.monotonic()
        with pytest.raises(Unavailable, match="does not answer"):
            RemoteControl(f"https://127.0.0.1:{port}", site.access).ask("status")
        with pytest.raises(Unavailable, match="went away"):
            RemoteControl(f"http://127.0.0.1:{port}", site.access, silence_s=0.3).ask("status")
        assert time.monotonic() - begin_s < 5
    with pytest.raises(Unavailable, match="does not answer"):
        RemoteControl(f"https://127.0.0.1:{port}", site.access).ask("status")


def test_files_of_the_access_are_named_by_the_rollout_s_options(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"--server-ca-file {tmp_path}/none cannot be read"):
        RemoteControl("https://127.0.0.1:1", Access(ca_file=str(tmp_path / "none"))).ask("status")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(SpecError, match=f"--server-token-file {tmp_path}/none cannot be read"):
            RemoteControl(url, Access(token_file=str(tmp_path / "none"))).ask("status")


def test_the_second_server_s_files_are_named_by_its_own_options(tmp_path: Path) -> None:
    access = Access(ca_file=str(tmp_path / "none"))
    with pytest.raises(SpecError, match=f"--second-server-ca-file {tmp_path}/none cannot be read"):
        RemoteControl("https://127.0.0.1:1", access, option="--second-server").ask("status")
    with pytest.raises(RequestError, match="--second-server must be the address"):
        RemoteControl("https://gpu-3", Access(), option="--second-server")


def test_a_rollout_that_was_let_in_waits_where_its_key_is_no_longer_accepted(site: RemoteSite, tmp_path: Path) -> None:
    api = site.serve({"status": lambda *_: {}})
    own = tmp_path / "own"
    own.write_text(KEY)
    control = site.control(api, Access(token_file=str(own)))
    control.ask("status")
    site.keys.write_text("another-key-of-16-or-more\n")
    with pytest.raises(Unavailable, match="refuses the request") as refusal:
        control.ask("status")
    assert refusal.value.facts["reason"] == "access"
    own.unlink()
    with pytest.raises(Unavailable, match="--server-token-file"):
        control.ask("status")
    own.write_text("another-key-of-16-or-more\n")
    assert control.ask("status") == {}
    with pytest.raises(AccessDenied):  # one that never was
        site.control(api, NO_ACCESS).ask("status")


def test_a_server_s_addresses_are_those_of_its_control() -> None:
    control = RemoteControl("https://gpu-3:8004", Access(ca_file="/ca.crt", token_file="/key"))
    status = {"grpc": "127.0.0.1:8001", "metrics": "http://127.0.0.1:8002/metrics", "grpc_access": None, "pid": 7}
    assert control.seen_from_here(status) == {
        "grpc": "gpu-3:8001",
        "metrics": "http://gpu-3:8002/metrics",
        "grpc_access": None,
        "pid": 7,
    }
    own = {"ca_file": "/on/the/server.crt", "server_name": "llm.example"}
    found = control.seen_from_here({**status, "grpc_access": own})
    assert found["grpc_access"] == {"is_tls": True, "ca_file": "/ca.crt", "server_name": "llm.example"}
    with pytest.raises(RequestError, match="asks for a client's certificate"):
        control.seen_from_here({**status, "grpc_access": {**own, "cert_file": "/c", "key_file": "/k"}})
    six = RemoteControl("https://[fd00::3]:8004", Access())
    assert six.seen_from_here(status)["grpc"] == "[fd00::3]:8001"
