# SPDX-License-Identifier: Apache-2.0
"""A web application in a thread of its own leaves no connection open when it is closed."""

import gc
import socket
import ssl
import threading
import urllib.request
from pathlib import Path

import pytest
from aiohttp import web
from certificates import Authority

from trireme.base.http_servers.http_access import HttpAccess
from trireme.base.http_servers.http_thread import HttpThread, listen


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_connection_that_came_as_the_server_was_closed_is_closed(scheme: str, tmp_path: Path) -> None:
    is_busy, goes_on = threading.Event(), threading.Event()

    async def answer(_: web.Request) -> web.Response:
        is_busy.set()
        goes_on.wait(10)  # the loop itself, so that what comes meanwhile comes at once
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    authority = Authority(tmp_path)
    pair = authority.server()
    tls = HttpAccess(cert_file=pair.cert, key_file=pair.key).tls() if scheme == "https" else None
    http = HttpThread(app, listener, silence_s=5, tls=tls)
    trusted = ssl.create_default_context(cafile=authority.ca)

    def ask() -> None:
        urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/", context=trusted).close()

    asking = threading.Thread(target=ask)
    asking.start()
    assert is_busy.wait(10)
    with socket.create_connection(("127.0.0.1", port), timeout=10) as late:
        closing = threading.Thread(target=http.close)
        closing.start()
        closing.join(0.1)
        goes_on.set()
        closing.join(10)
        gc.collect()  # a socket that nobody closed would warn
        assert late.recv(1) == b""
    asking.join(10)
