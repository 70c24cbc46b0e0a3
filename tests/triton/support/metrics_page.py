# SPDX-License-Identifier: Apache-2.0
"""A page of metrics on a free port, for a Prometheus to scrape."""

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def metrics_page(
    text: Callable[[], str],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: ssl.SSLContext | None = None,
    keys: list[str | None] | None = None,
) -> Iterator[str]:
    """Serve a page of metrics, and yield its `host:port`.

    Args:
        host: address to listen at.
        port: 0: a free one.
        tls: of connections; None: they have none.
        keys: gets the `Authorization` of each request.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if keys is not None:
                keys.append(self.headers.get("Authorization"))
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Log nothing: the page is asked for four times a second."""

    server = ThreadingHTTPServer((host, port), Page)
    if tls is not None:
        # The handshake is that of the request's thread: a client that breaks off must not end this loop.
        server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
