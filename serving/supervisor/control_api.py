# SPDX-License-Identifier: Apache-2.0
"""The control of a server over HTTPS, for a rollout's controller on another machine: the operations of its socket.

A caller sends ``POST /control/OPERATION`` with a JSON object, and reads a JSON object on each line: any number of
``{"say": TEXT}`` and, while nothing else comes, ``{"alive": true}``, and at last ``{"done": {...}}`` or
``{"error": TEXT}``, as over the socket (`trireme.base.unix_rpc`). What was begun is done to its end, whether or not the
caller stays.
"""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Mapping

import msgspec
from aiohttp import web

from trireme.base.errors import RequestError, ServingError, SpecError
from trireme.base.http_access import HttpAccess, is_loopback
from trireme.base.http_thread import HttpThread, listen
from trireme.base.unix_rpc import MAX_BYTES, Handler

_log = logging.getLogger("trireme.control_api")

ALIVE_S = 5.0  # between two lines; a caller that hears nothing for longer has lost the server
_SILENCE_S = 30.0  # of a connection without a request
_OPTION = "remote_port"

_Line = Mapping[str, object]


class ControlApi:
    """The server of the operations, from its construction until it is closed.

    Args:
        handlers: by operation, as of the socket.
        host: address to listen on.
        port: port to listen on; 0: any free one.
        access: certificate and keys; on an address of this machine alone neither is needed.

    Raises:
        SpecError: nobody can listen there, or a file cannot be used.
        RequestError: other machines reach it, and there is no key or no TLS.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, host: str, port: int, access: HttpAccess) -> None:
        self._handlers, self._access = handlers, access
        tls = access.tls()
        _check(host, is_encrypted=tls is not None, has_key=access.keys() is not None)
        try:
            listener = listen(host, port)
        except SpecError as exc:
            raise SpecError(exc.message.replace("--port", "--remote-port"), field=_OPTION, value=port) from exc
        self.port = int(listener.getsockname()[1])
        app = web.Application(client_max_size=MAX_BYTES)
        app.router.add_post("/control/{operation}", self._answer)
        self._running: set[asyncio.Task[None]] = set()
        self._http = HttpThread(app, listener, silence_s=_SILENCE_S, tls=tls)

    def close(self) -> None:
        """Take no more calls."""
        self._http.close()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        operation = request.match_info["operation"]
        handler = self._handlers.get(operation)
        if handler is None:
            known = ", ".join(self._handlers)
            return _refused(404, RequestError(f"operation {operation!r} is not known; there are {known}", field="op"))
        try:
            question = msgspec.json.decode(await request.read(), type=dict[str, object])
        except msgspec.DecodeError as exc:
            return _refused(400, RequestError(f"the request is no JSON object: {exc}"))
        lines = asyncio.Queue[_Line]()
        task = asyncio.create_task(_carry_out(operation, handler, question, lines))
        self._running.add(task)  # it goes on without its caller
        task.add_done_callback(self._running.discard)
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await response.prepare(request)
        is_last = False
        while not is_last:
            line: _Line = {"alive": True}
            with contextlib.suppress(TimeoutError):
                line = await asyncio.wait_for(lines.get(), ALIVE_S)
            await response.write(msgspec.json.encode(line) + b"\n")
            is_last = "done" in line or "error" in line
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        try:
            if self._access.accepts(request.headers.get("Authorization", "")):
                return None
        except SpecError as exc:
            _log.warning("nobody is let in: %s", exc.message)
            return _refused(503, RequestError("the keys of this server cannot be read now; ask again later"))
        refusal = _refused(401, RequestError("this server asks for a key: send Authorization: Bearer KEY"))
        refusal.headers["WWW-Authenticate"] = "Bearer"
        refusal.force_close()  # what else the caller sends is not read
        return refusal


async def _carry_out(
    operation: str, handler: Handler, question: dict[str, object], lines: asyncio.Queue[_Line]
) -> None:
    loop = asyncio.get_running_loop()

    def say(text: str) -> None:
        loop.call_soon_threadsafe(lines.put_nowait, {"say": text})

    try:
        lines.put_nowait({"done": dict(await asyncio.to_thread(functools.partial(handler, question, say)))})
    except ServingError as exc:
        lines.put_nowait({"error": str(exc)})
    except Exception as exc:
        _log.exception("a call of %s could not be answered", operation)
        lines.put_nowait({"error": f"[INTERNAL] {exc!r}; the server's log says more"})


def _refused(status: int, error: ServingError) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode({"error": str(error)}) + b"\n", content_type="application/x-ndjson"
    )


def _check(host: str, *, is_encrypted: bool, has_key: bool) -> None:
    if is_loopback(host) or (is_encrypted and has_key):
        return
    lacks = " and ".join(
        name
        for name, is_there in (
            ("no key (--remote-token-file)", has_key),
            ("no TLS (--remote-cert-file, --remote-key-file)", is_encrypted),
        )
        if not is_there
    )
    raise RequestError(
        f"--remote-host {host} lets other machines load and remove releases, and has {lacks}; give it, or listen on "
        "127.0.0.1",
        field="remote_host",
        value=host,
    )
