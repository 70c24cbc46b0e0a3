# SPDX-License-Identifier: Apache-2.0
"""A web application in a thread of its own leaves no connection open when it is closed."""

import gc
import socket
import threading
import urllib.request

from aiohttp import web

from trireme.base.http_thread import HttpThread, listen


def test_a_connection_that_came_as_the_server_was_closed_is_closed() -> None:
    is_busy, goes_on = threading.Event(), threading.Event()

    async def answer(_: web.Request) -> web.Response:
        is_busy.set()
        goes_on.wait(10)  # the loop itself, so that what comes meanwhile comes at once
        return web.Response()

    app = web.Application()
    app.router.add_get("/", answer)
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    http = HttpThread(app, listener, silence_s=5)
    asking = threading.Thread(target=lambda: urllib.request.urlopen(f"http://127.0.0.1:{port}/").close())
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
