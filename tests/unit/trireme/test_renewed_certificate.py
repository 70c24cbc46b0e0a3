# SPDX-License-Identifier: Apache-2.0
"""A certificate that is replaced while its server runs, in handshakes of real clients."""

import logging
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority, Pair
from kserve_server import KServeServer, story
from running_gateway import RunningGateway

from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.http_servers.renewed_certificate import RenewedCertificate

OLD_S = 100.0  # of files, so that a change of theirs shows
WAIT_S = 60.0


class Mounted:
    """A pair of files as Kubernetes mounts a Secret: names in a folder that is replaced at once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number = folder, 0
        folder.mkdir()
        self.cert, self.key = folder / "tls.crt", folder / "tls.key"
        self.cert.symlink_to("..data/tls.crt")
        self.key.symlink_to("..data/tls.key")

    def put(self, cert: Path, key: Path) -> None:
        self._number += 1
        version = self._folder / f"..{self._number}"
        version.mkdir()
        shutil.copy(cert, version / "tls.crt")
        shutil.copy(key, version / "tls.key")
        link = self._folder / "..new"
        link.symlink_to(version.name)
        link.replace(self._folder / "..data")


class Clock:
    """Seconds since 1970, some after the files were written."""

    def __call__(self) -> float:
        return time.time() + OLD_S


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def mounted(tmp_path: Path) -> Mounted:
    return Mounted(tmp_path / "mounted")


def shown(server: ssl.SSLContext, trusted: ssl.SSLContext, name: str | None) -> int:
    """Return the serial number of the certificate that a client sees in a handshake."""
    ours, theirs = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusted.wrap_bio(ours, theirs, server_hostname=name)
    serving = server.wrap_bio(theirs, ours, server_side=True)
    is_done = [False, False]
    while not all(is_done):
        for index, side in enumerate((client, serving)):
            try:
                side.do_handshake()
                is_done[index] = True
            except ssl.SSLWantReadError:
                pass
    found = client.getpeercert()
    assert found
    return int(str(found["serialNumber"]), 16)


def trusting(authority: Authority, *, checks_name: bool = True) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.check_hostname = checks_name
    return context


def serial_of(pair: Pair) -> int:
    from cryptography import x509  # noqa: PLC0415

    return x509.load_pem_x509_certificate(pair.cert.read_bytes()).serial_number


@pytest.mark.parametrize("name", ["localhost", None], ids=["a name", "no name"])
def test_connections_see_the_certificate_that_is_there_now(
    authority: Authority, mounted: Mounted, name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="trireme.http.certificate")
    first, second = authority.server("first"), authority.server("second")
    trusted = trusting(authority, checks_name=name is not None)
    mounted.put(first.cert, first.key)
    renewed = RenewedCertificate(HttpAccess(mounted.cert, mounted.key), Clock())
    assert renewed.context is not None
    renewed.renew()
    assert shown(renewed.context, trusted, name) == serial_of(first)
    assert caplog.text == ""
    mounted.put(second.cert, second.key)
    assert shown(renewed.context, trusted, name) == serial_of(first)
    renewed.renew()
    assert shown(renewed.context, trusted, name) == serial_of(second)
    renewed.renew()
    assert caplog.text.count("was read again") == 1


def test_files_that_do_not_fit_or_are_gone_leave_the_certificate_of_before(
    authority: Authority, mounted: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = authority.server("first"), authority.server("second")
    trusted = trusting(authority)
    mounted.put(first.cert, first.key)
    renewed = RenewedCertificate(HttpAccess(mounted.cert, mounted.key), Clock())
    assert renewed.context is not None
    mounted.put(second.cert, first.key)
    for _ in range(3):
        renewed.renew()
        assert shown(renewed.context, trusted, "localhost") == serial_of(first)
    assert caplog.text.count("the certificate of before goes on") == 1
    mounted.cert.unlink()
    renewed.renew()
    assert shown(renewed.context, trusted, "localhost") == serial_of(first)
    mounted.cert.symlink_to("..data/tls.crt")
    mounted.put(second.cert, second.key)
    renewed.renew()
    assert shown(renewed.context, trusted, "localhost") == serial_of(second)


def test_files_that_have_just_changed_are_left_alone_until_both_are_there(
    authority: Authority, mounted: Mounted
) -> None:
    first, second = authority.server("first"), authority.server("second")
    mounted.put(first.cert, first.key)
    now = [time.time() + OLD_S]
    renewed = RenewedCertificate(HttpAccess(mounted.cert, mounted.key), lambda: now[0])
    assert renewed.context is not None
    mounted.put(second.cert, second.key)
    now[0] = mounted.cert.stat().st_ctime + 1
    renewed.renew()
    assert shown(renewed.context, trusting(authority), "localhost") == serial_of(first)
    now[0] += 5
    renewed.renew()
    assert shown(renewed.context, trusting(authority), "localhost") == serial_of(second)


def test_without_files_there_is_nothing_to_read() -> None:
    renewed = RenewedCertificate(HttpAccess())
    renewed.renew()
    assert renewed.context is None


@pytest.fixture
def gateway(authority: Authority, mounted: Mounted) -> Iterator[RunningGateway]:
    first = authority.server("first")
    mounted.put(first.cert, first.key)
    with (
        KServeServer(*story()) as server,
        RunningGateway(server.url, certificate=(mounted.cert, mounted.key)) as running,
    ):
        yield running


def serial_at(port: int, trusted: ssl.SSLContext) -> int:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 200"
        return int(str((connection.getpeercert() or {})["serialNumber"]), 16)


@pytest.mark.slow
def test_a_gateway_shows_a_renewed_certificate_and_keeps_its_connections(
    gateway: RunningGateway, authority: Authority, mounted: Mounted
) -> None:
    trusted = trusting(authority)
    before = serial_at(gateway.port, trusted)
    with (
        socket.create_connection(("127.0.0.1", gateway.port), timeout=WAIT_S) as plain,
        trusted.wrap_socket(plain, server_hostname="localhost") as older,
    ):
        second = authority.server("second")
        mounted.put(second.cert, second.key)
        deadline_s = time.monotonic() + WAIT_S
        while (now := serial_at(gateway.port, trusted)) == before and time.monotonic() < deadline_s:
            time.sleep(0.2)
        assert now == serial_of(second) != before
        older.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert older.recv(12) == b"HTTP/1.1 200"
