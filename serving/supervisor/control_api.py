# SPDX-License-Identifier: Apache-2.0
"""The control of a server over HTTPS, for a rollout's controller on another machine: the operations of its socket.

A caller sends ``POST /control/OPERATION`` with a JSON object and a key, and reads a JSON object on each line: any
number of ``{"say": TEXT}`` and, while nothing else comes, ``{"alive": true}``, and at last ``{"done": {...}}`` or
``{"error": TEXT}``, as over the socket (`trireme.base.unix_rpc`). What was begun is done to its end, whether or not the
caller stays (`running_operations`).
"""

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from aiohttp import web

from serving.supervisor.running_operations import Line, RunningOperations
from trireme.base.errors import AccessDenied, RequestError, ServingError, SpecError, Unavailable
from trireme.base.http_servers.http_access import AcceptedKeys, HttpAccess, is_loopback
from trireme.base.http_servers.http_thread import HttpThread, listen
from trireme.base.unix_rpc import MAX_BYTES, Handler

_log = logging.getLogger("trireme.control_api")

ALIVE_S = 5.0  # between two lines; a caller that hears nothing for longer has lost the server
_SILENCE_S = 30.0  # of a connection without a request
_BODY_S = 10.0  # for the whole of a question
_MAX_CONNECTIONS = 64
_ALIVE = Line(b'{"alive": true}')


class ControlApi:
    """The server of the operations, from its construction until it is closed.

    Args:
        handlers: by operation, as of the socket.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        access: keys, without which nobody is answered, and the certificate, which an address of this machine alone can
            do without.

    Raises:
        SpecError: nobody can listen there, or a file cannot be used.
        RequestError: there is no key, or other machines reach it and there is no TLS.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, host: str, port: int, access: HttpAccess) -> None:
        check_control_access(host, access)
        self._handlers, self._keys = handlers, AcceptedKeys(access)
        self._operations = RunningOperations(handlers)
        try:
            listener = listen(host, port)
        except SpecError as exc:
            raise SpecError(exc.message.replace("--port", "--remote-port"), field="remote_port", value=port) from exc
        self.port = int(listener.getsockname()[1])
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_post("/control/{operation}", self._answer)
        app.on_shutdown.append(self._end)
        self._http = HttpThread(
            app,
            listener,
            silence_s=_SILENCE_S,
            tls=access.tls(),
            max_connections=_MAX_CONNECTIONS,
            lingering_s=0.0,  # of a request that is refused no more is read
        )

    def close(self) -> None:
        """Take no more calls, and end the connections; what was begun goes on, and nobody hears of its end."""
        self._http.close()

    async def _end(self, _: web.Application) -> None:
        self._operations.end()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        try:
            self._admit(request)
            lines = await self._begin(request)
        except ServingError as exc:
            return _refused(exc)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        try:
            await response.prepare(request)
            line = _ALIVE
            while not line.is_last:
                try:
                    line = await asyncio.wait_for(lines.get(), ALIVE_S)
                except TimeoutError:
                    line = _ALIVE
                if line.data:
                    await response.write(line.data + b"\n")
        finally:
            self._operations.leave(lines)
        return response

    async def _begin(self, request: web.Request) -> asyncio.Queue[Line]:
        operation = request.match_info["operation"]
        if operation not in self._handlers:
            known = ", ".join(self._handlers)
            raise _NotThere(f"operation {operation!r} is not known; there are {known}", field="op", value=operation)
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()
            question = msgspec.json.decode(body, type=dict[str, object])
        except TimeoutError:
            raise RequestError(f"the request did not come within {_BODY_S:g} s") from None
        except web.HTTPRequestEntityTooLarge as exc:
            raise RequestError(f"a request may have {MAX_BYTES} bytes; send less at a time") from exc
        except (msgspec.DecodeError, RecursionError) as exc:
            raise RequestError(f"the request is no JSON object: {exc}") from exc
        return self._operations.follow(operation, question)

    def _admit(self, request: web.Request) -> None:
        """Let in who brings a key.

        Raises:
            AccessDenied: the caller brings none that is accepted now.
            Unavailable: the keys cannot be read now; why is for the operator alone.
        """
        try:
            is_accepted = self._keys.accepts(request.headers.get("Authorization", ""))
        except SpecError as exc:
            _log.warning("nobody is let in: %s", exc.message)
            raise Unavailable("the keys of this server cannot be read now; ask again later", reason="no_keys") from None
        if not is_accepted:
            raise AccessDenied("this server asks for a key: send Authorization: Bearer KEY", reason="key")


def check_control_access(host: str, access: HttpAccess) -> None:
    """Refuse an access that lets strangers in, or shows the key to them.

    Raises:
        SpecError: a file cannot be used.
        RequestError: there is no key, or other machines reach the host and there is no TLS.
    """
    if access.keys() is None:
        raise RequestError(
            "--remote-port lets callers load and remove releases, and there is no key that they would need; give "
            "--remote-token-file, a file such as from `openssl rand -hex 32`",
            field="remote_token_file",
        )
    if access.tls() is None and not is_loopback(host):
        raise RequestError(
            f"--remote-host {host} is reached by other machines, and without TLS a key could be read on its way; give "
            "--remote-cert-file and --remote-key-file, or listen on 127.0.0.1",
            field="remote_host",
            value=host,
        )


class _NotThere(RequestError):
    """A request for what is not there."""


def _refused(error: ServingError) -> web.Response:
    match error:
        case AccessDenied():
            status = 401
        case _NotThere():
            status = 404
        case Unavailable():
            status = 503
        case _:
            status = 400
    refusal = web.Response(
        status=status, body=msgspec.json.encode({"error": str(error)}) + b"\n", content_type="application/x-ndjson"
    )
    if status == 401:
        refusal.headers["WWW-Authenticate"] = "Bearer"
    refusal.force_close()  # what else the caller sends is not read
    return refusal
