# SPDX-License-Identifier: Apache-2.0
"""The prefill servers that a deployment's urls stand for now; those of a name are as DNS has them."""

import asyncio
import logging
import time

from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from serving.disaggregation.prefill_server import PrefillServer
from trireme.base.server_names import ServerName, addresses_of, is_server_name, read_server_name

_ASK_S = 2.0  # an answer of DNS is used so long
_WAIT_S = 0.1  # a prompt waits so long for a newer answer, and is then asked of the servers that are known
_log = logging.getLogger("trireme.disaggregation")


class ServerSet:
    """The servers of one deployment, for one event loop.

    DNS is asked when there is a prompt, and a DNS that is away, or has no address, takes no server away.
    """

    def __init__(self, spec: PrefillServersSpec) -> None:
        self._spec = spec
        self._fixed = [PrefillServer(url, spec) for url in spec.urls if not is_server_name(url)]
        self._names = {read_server_name(url): _OfName() for url in spec.urls if is_server_name(url)}
        self._leaving: list[PrefillServer] = []
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = -_ASK_S

    async def servers(self) -> list[PrefillServer]:
        """Return the servers of now, at most a moment later."""
        if not self._names:
            return self._known()
        is_due = time.monotonic() - self._asked_s >= _ASK_S
        if is_due and (self._asking is None or self._asking.done()):
            self._asking = asyncio.create_task(self._ask())
            await asyncio.wait([self._asking], timeout=_WAIT_S)
        elif self._asking is not None and not self._known():  # a prompt beside the first one
            await asyncio.wait([self._asking], timeout=_WAIT_S)
        return self._known()

    async def close(self) -> None:
        """Close all connections; what is asked on them ends."""
        if self._asking is not None:
            self._asking.cancel()
        for server in (*self._known(), *self._leaving):
            await server.close()

    def _known(self) -> list[PrefillServer]:
        return [*self._fixed, *(server for found in self._names.values() for server in found.servers.values())]

    async def _ask(self) -> None:
        for name, found in self._names.items():
            try:
                self._leaving += found.change(name, await addresses_of(name), self._spec)
            except Exception:  # the next answer may be a better one
                _log.exception("the prefill servers of %s cannot be brought up to date", name.url)
        self._asked_s = time.monotonic()
        at_rest = [server for server in self._leaving if server.num_asked == 0]
        self._leaving = [server for server in self._leaving if server.num_asked]
        for server in at_rest:
            await server.close()


class _OfName:
    """The servers of one name, by address."""

    def __init__(self) -> None:
        self.servers: dict[str, PrefillServer] = {}

    def change(self, name: ServerName, addresses: list[str], spec: PrefillServersSpec) -> list[PrefillServer]:
        """Take in an answer of DNS, and return the servers that are in it no more."""
        if not addresses:
            return []
        gone = [self.servers.pop(address) for address in list(self.servers) if address not in addresses]
        for address in addresses:
            if address not in self.servers:
                certified = name.certified_host if name.is_tls else None
                self.servers[address] = PrefillServer(name.url_of(address), spec, certified_host=certified)
        return gone
