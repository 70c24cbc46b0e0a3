# SPDX-License-Identifier: Apache-2.0
"""A web application in an event loop and thread of its own, with limits on the time of each connection."""

import asyncio
import contextlib
import logging
import socket
import ssl
import threading
import weakref

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from trireme.base.errors import SpecError

_BACKLOG = 128  # many clients ask at the same second
_MAX_LINE_BYTES = 65_536  # in a request's head: a proxy may add a client's certificate
_FINISH_S = 2.0  # as long as a client waits for its answer (`clients.rollout.routing.rollout_client`)
_MAX_CONNECTIONS = 1000
_HANDSHAKE_S = 10.0
_RETRY_S = 0.1
_END_S = 1.0  # for connections that were hung up

_log = logging.getLogger("trireme.http")
# Bytes that are no HTTP could fill the log, and anybody can send them.
_log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError)))


class HttpThread:
    """The server of an application from its construction until it is closed.

    Args:
        listener: a socket of `listen`.
        silence_s: how long a connection may bring no whole head of a request, in seconds.
        tls: the context of its connections; None: they have no TLS.
        max_connections: number of connections, with those whose handshake goes on; one more is closed at once.
        lingering_s: how long the rest of a request is read that was answered before its end, in seconds.
    """

    def __init__(
        self,
        app: web.Application,
        listener: socket.socket,
        *,
        silence_s: float,
        tls: ssl.SSLContext | None = None,
        max_connections: int = _MAX_CONNECTIONS,
        lingering_s: float = 10.0,
    ) -> None:
        self._listener = listener
        self._silence_s, self._lingering_s = silence_s, lingering_s
        self._tls = tls
        self._max_connections = max_connections
        self._begun: dict[asyncio.Task[None], socket.socket] = {}  # connections whose handshake goes on
        self._transports: weakref.WeakSet[asyncio.Transport] = weakref.WeakSet()  # those of all others
        self._connections: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # all of them
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._thread = threading.Thread(target=self._run, args=(app,), name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End all connections, once running requests are answered or have had their time."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, app: web.Application) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve(app))

    async def _serve(self, app: web.Application) -> None:
        runner = web.AppRunner(
            app,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._silence_s,  # from the connection on, and again after each answer
            lingering_time=self._lingering_s,
            logger=_log,
            max_field_size=_MAX_LINE_BYTES,
            max_line_size=_MAX_LINE_BYTES,
            shutdown_timeout=_FINISH_S,
        )
        await runner.setup()
        assert runner.server is not None
        self._listener.setblocking(False)
        self._watch(runner.server)
        try:
            await self._closing.wait()
        finally:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            # A task that is cancelled before asyncio has told its transport of it would leave that one open.
            for connection in self._begun.values():
                _hang_up(connection)
            await asyncio.gather(*self._begun, return_exceptions=True)
            await runner.cleanup()
            await self._end_all()

    async def _end_all(self) -> None:
        """End connections whose TLS would wait for the caller's farewell: the loop ends now."""
        for transport in self._transports:
            transport.abort()
        for connection in self._connections:  # also of transports that nobody holds but the loop
            _hang_up(connection)
        deadline_s = self._loop.time() + _END_S
        while any(each.fileno() != -1 for each in self._connections) and self._loop.time() < deadline_s:
            await asyncio.sleep(0.001)

    def _watch(self, server: web.Server) -> None:
        if not self._closing.is_set():
            self._loop.add_reader(self._listener, self._accept, server)

    def _accept(self, server: web.Server) -> None:
        """Take a connection; aiohttp's own sites take any number, and count none before its handshake."""
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):  # its caller has gone
            return
        except OSError as exc:  # such as for want of descriptors
            _log.warning("no connection is taken now: %s", exc)
            self._loop.remove_reader(self._listener)
            self._loop.call_later(_RETRY_S, self._watch, server)
            return
        if len(self._begun) + len(server.connections) >= self._max_connections:
            connection.close()
            return
        connection.setblocking(False)
        self._connections.add(connection)
        task = self._loop.create_task(self._begin(server, connection))
        self._begun[task] = connection
        task.add_done_callback(self._begun.pop)

    async def _begin(self, server: web.Server, connection: socket.socket) -> None:
        timeout_s = None if self._tls is None else _HANDSHAKE_S
        try:
            transport, _ = await self._loop.connect_accepted_socket(
                server, connection, ssl=self._tls, ssl_handshake_timeout=timeout_s, ssl_shutdown_timeout=timeout_s
            )
            self._transports.add(transport)
        except (OSError, TimeoutError):  # no TLS, or one without trust in the certificate
            connection.close()


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # its caller has done so
        connection.shutdown(socket.SHUT_RDWR)


def listen(host: str, port: int, *, option: str = "--port") -> socket.socket:
    """Return a socket that takes connections; port 0: any free port.

    Args:
        option: that names the port, for the error.

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
            f"port {port} of host {host} cannot be used ({exc.strerror}); choose another with {option}",
            field="port",
            value=port,
        ) from exc
    return listener
