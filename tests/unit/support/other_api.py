# SPDX-License-Identifier: Apache-2.0
"""A server of OpenAI's API that is not ours: what it says is scripted, and its connections stay open."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

DONE = b"data: [DONE]\n\n"


def said(finish_reason: str | None = None, **fields: object) -> bytes:
    """Return the event of a delta of the only choice."""
    choice = {"index": 0, "delta": fields, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n".encode()


class OtherApi:
    """A server that runs inside a `with`.

    Args:
        data: of each answer.
        waits_s: before each answer.

    Attributes:
        bodies, headers: of the requests that it had.
    """

    def __init__(self, *data: bytes, status: int = 200, waits_s: float = 0.0) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self._is_over = is_over = threading.Event()
        bodies, headers = self.bodies, self.headers

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                headers.append(dict(self.headers))
                is_over.wait(waits_s)
                self.send_response(status)
                self.end_headers()
                for part in data:
                    self.wfile.write(part)
                    self.wfile.flush()
                is_over.wait(20)
                self.close_connection = True

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
