# SPDX-License-Identifier: Apache-2.0
"""A server's metrics, asked at a wrong place."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clients.load.load_arguments import metrics_url
from clients.load_run.server_samples import ServerWatch
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.render.server_lock import server_lock
from ensemble_configs.spec.deployment import load_deployment, override_triton
from trireme.base.errors import RequestError

_SETTINGS = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\n"  # HTTP/2, as gRPC's ports begin


@pytest.fixture
def grpc_port() -> Iterator[str]:
    """Yield host:port of a listener that says to everybody what a gRPC server says first."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(_SETTINGS)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("given", ["http://a b:8002", ":x", "http://h:x/metrics"])
def test_what_is_no_address_is_refused_in_words(given: str) -> None:
    with pytest.raises(RequestError, match=r"--metrics .*: is no address: .*; it names a Triton's metrics page"):
        metrics_url(given, "localhost:8001")


def test_metrics_are_where_the_server_of_this_folder_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = override_triton(load_deployment(DEFAULT_DEPLOYMENT), grpc_port=18001, metrics_port=9100)
    with server_lock(tmp_path / "build" / "demo_cpu", spec):
        assert metrics_url(None, "localhost:18001") == "http://localhost:9100/metrics"
        assert metrics_url(None, "localhost:28001") == "http://localhost:28002/metrics"  # another server
        assert metrics_url(None, "gpu-host:18001") == "http://gpu-host:18002/metrics"  # of another machine
    assert metrics_url(None, "localhost:18001") == "http://localhost:18002/metrics"  # it has ended


def test_metrics_are_behind_the_grpc_port_where_nothing_is_known() -> None:
    assert metrics_url(None, "gpu-host:8001") == "http://gpu-host:8002/metrics"
    assert metrics_url(None, "grpcs://[::1]:18001") == "http://[::1]:18002/metrics"
    assert metrics_url(None, "http://gpu-host:8000/v1") is None


def test_a_grpc_port_is_refused_in_words(grpc_port: str) -> None:
    with pytest.raises(RequestError, match="does not speak HTTP") as caught:
        metrics_url(grpc_port, "localhost:8001")
    assert "\x00" not in str(caught.value)


def test_a_watch_goes_on_and_says_why_it_has_nothing(grpc_port: str) -> None:
    with ServerWatch(f"http://{grpc_port}/metrics", start_ns=0, period_s=0.01) as watch:
        deadline_s = time.monotonic() + 20
        while watch.failure is None and time.monotonic() < deadline_s:
            time.sleep(0.01)
    assert watch.failure is not None
    assert "does not speak HTTP" in watch.failure
    assert watch.samples == []
