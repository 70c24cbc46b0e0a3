# SPDX-License-Identifier: Apache-2.0
"""The process of a frontend: `python -m serving.frontend.process SETTING SOCKET`, started by `trireme serve` alone.

It ends when the socket to its parent does. It never listens by itself: the listening sockets are the parent's, so that
a connection waits, and is not refused, while a frontend is started again.
"""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from serving.frontend.common.departures import Departures
from serving.frontend.common.messages import Down, FrontendMessage, Ping, Refuse, Setting, Upstream
from serving.process.server_log import set_up_log
from trireme.base.byte_budget import ByteBudget
from trireme.base.errors import Unavailable
from trireme.base.known_types import known

if TYPE_CHECKING:
    from serving.frontend.grpc.grpc_frontend import GrpcFrontend
    from serving.frontend.http.http_frontend import HttpFrontend

    Frontend = GrpcFrontend | HttpFrontend

_log = logging.getLogger("trireme.frontend")

_OWN_DESCRIPTORS = 64
_LARGE_AT_ONCE = 8  # requests of the largest size that may be on their way


async def run(setting: Setting, parent: socket.socket) -> None:
    """Serve until the parent closes its socket."""
    departures = Departures()
    budget = ByteBudget(_LARGE_AT_ONCE * setting.max_request_bytes)
    frontend = _of_kind(setting, departures, budget)
    await frontend.listen(setting)
    reader, writer = await asyncio.open_connection(sock=parent)
    ticking = asyncio.create_task(_tick(frontend))
    decoder = msgspec.json.Decoder(known(FrontendMessage))
    with contextlib.suppress(ConnectionError):  # the parent was killed
        while line := await reader.readline():
            match decoder.decode(line):
                case Upstream() as upstream:
                    departures.run_dir = Path(upstream.run_dir)
                    await frontend.serve(upstream)
                case Down():
                    await frontend.serve(None)
                case Refuse(message, reason):
                    frontend.refuse(Unavailable(message, reason=reason))
                case Ping():
                    writer.write(b"{}\n")
    ticking.cancel()
    await frontend.close()


def _of_kind(setting: Setting, departures: Departures, budget: ByteBudget) -> "Frontend":
    """Return the frontend of the setting's kind; its process imports nothing of the other kind."""
    if setting.kind == "grpc":
        from serving.frontend.grpc.grpc_frontend import GrpcFrontend  # noqa: PLC0415

        return GrpcFrontend(departures, budget, setting.max_request_bytes, setting.max_connections)
    from serving.frontend.http.http_frontend import HttpFrontend  # noqa: PLC0415

    return HttpFrontend(departures, budget, setting)


async def _tick(frontend: "Frontend") -> None:
    while True:
        await asyncio.sleep(1)
        try:
            frontend.tick()
        except Exception:  # an error of one connection must not end the watch over all others
            _log.exception("a connection could not be looked after")


def _within_descriptors(setting: Setting) -> Setting:
    """Return a setting with no more connections than this process has descriptors for: one each way."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = setting.max_connections if soft == resource.RLIM_INFINITY else max((soft - _OWN_DESCRIPTORS) // 2, 1)
    return msgspec.structs.replace(setting, max_connections=min(setting.max_connections, most))


def main() -> None:
    """Run the frontend that `trireme serve` asks for."""
    setting = _within_descriptors(msgspec.json.decode(sys.argv[1], type=known(Setting)))
    set_up_log(setting.log_format, deployment="")
    gc.freeze()  # imported objects stay; a full collection takes milliseconds of every stream
    asyncio.run(run(setting, socket.socket(fileno=int(sys.argv[2]))))


if __name__ == "__main__":
    main()
