# SPDX-License-Identifier: Apache-2.0
"""A web application in an event loop and thread of its own, with limits on the time of each connection."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from trireme.base.errors import SpecError

_BACKLOG = 128  # many clients ask at the same second
_MAX_LINE_BYTES = 65_536  # in a request's head: a proxy may add a client's certificate
_FINISH_S = 2.0  # as long as a client waits for its answer (`clients.rollout.routing.rollout_client`)

_log = logging.getLogger("trireme.http")
# Bytes that are no HTTP could fill the log, and anybody can send them.
_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


class HttpThread:
    """The server of an application from its construction until it is closed.

    Args:
        listener: a socket of `listen`.
        silence_s: how long a connection may bring no whole head of a request, in seconds.
        tls: the context of its connections; None: they have no TLS.
    """

    def __init__(
        self, app: web.Application, listener: socket.socket, *, silence_s: float, tls: ssl.SSLContext | None = None
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(
            target=self._run, args=(app, listener, silence_s, tls), name="http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """End all connections, once running requests are answered or have had their time."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, app: web.Application, listener: socket.socket, silence_s: float, tls: ssl.SSLContext | None) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(app, listener, silence_s, tls))

    async def _serve(
        self, app: web.Application, listener: socket.socket, silence_s: float, tls: ssl.SSLContext | None
    ) -> None:
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=silence_s,  # from the connection on, and again after each answer
            logger=_log,
            max_field_size=_MAX_LINE_BYTES,
            max_line_size=_MAX_LINE_BYTES,
            shutdown_timeout=_FINISH_S,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listener, backlog=_BACKLOG, ssl_context=tls).start()
            await self._closing.wait()
        finally:
            await runner.cleanup()


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that takes connections; port 0: any free port.

    Raises:
        SpecError: the address or the port cannot be used.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise SpecError(
            f"port {port} of host {host} cannot be used ({exc.strerror}); choose another with --port",
            field="port",
            value=port,
        ) from exc
    return listener
