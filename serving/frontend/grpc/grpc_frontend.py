# SPDX-License-Identifier: Apache-2.0
"""The frontend of gRPC: the relay behind a listening socket, with TLS where the deployment has certificates."""

import asyncio
import socket
import ssl
import time
from dataclasses import dataclass, field
from pathlib import Path

from serving.frontend.common.departures import Departures
from serving.frontend.common.messages import BACKLOG, Setting, Upstream
from serving.frontend.grpc.direct_responses import DirectResponses
from serving.frontend.grpc.grpc_relay import ClientConnection
from serving.process.reply_socket import reply_socket
from trireme.base.byte_budget import ByteBudget
from trireme.base.errors import Unavailable


@dataclass
class GrpcFrontend:
    """The connections of one server's gRPC port, and what they share."""

    departures: Departures
    budget: ByteBudget
    max_request_bytes: int
    max_connections: int
    port: int | None = None  # Triton's port; None: there is no Triton now
    own_models: frozenset[str] = frozenset()  # models that are told when a client leaves
    refusal: Unavailable | None = None  # why no request is taken
    connections: set[ClientConnection] = field(default_factory=set)
    direct: DirectResponses = field(default_factory=DirectResponses)

    async def listen(self, setting: Setting) -> None:
        """Take connections from now on."""
        await asyncio.get_running_loop().create_server(
            lambda: ClientConnection(self),
            sock=socket.socket(fileno=setting.listeners["grpc"]),
            ssl=_tls(setting),
            backlog=BACKLOG,
        )

    async def serve(self, upstream: Upstream | None) -> None:
        """Relay to another Triton from now on. Args: `upstream`: None: there is no Triton now."""
        if upstream is not None and upstream.has_direct_responses:
            self.direct.listen(reply_socket(Path(upstream.run_dir), self.departures.frontend))
        else:
            self.direct.close()
        self.port = None if upstream is None else upstream.grpc_port
        self.own_models = frozenset() if upstream is None else upstream.own_models

    def refuse(self, because: Unavailable) -> None:
        """Refuse every request of a model from now on."""
        self.refusal = because

    def tick(self) -> None:
        """End connections and streams that take too long; called once a second."""
        now_s = time.monotonic()
        for connection in list(self.connections):
            connection.tick(now_s)

    async def close(self) -> None:
        """Close every connection."""
        self.direct.close()
        for connection in list(self.connections):
            connection.close()


def _tls(setting: Setting) -> ssl.SSLContext | None:
    if setting.cert_file is None or setting.key_file is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(setting.cert_file, setting.key_file)
    context.set_alpn_protocols(["h2"])
    if setting.client_ca_file is not None:
        context.load_verify_locations(setting.client_ca_file)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
