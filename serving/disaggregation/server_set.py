# SPDX-License-Identifier: Apache-2.0
"""The prefill servers that a deployment's urls stand for now; those of a name are as DNS has them."""

import asyncio
import logging
import time

from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from serving.disaggregation.prefill_server import PrefillServer
from trireme.base.server_names import ServerName, addresses_of, is_server_name, read_server_name

_ASK_S = 2.0  # an answer of DNS is used so long
_WAIT_S = 0.1  # prompts wait so long for a newer answer, and are then asked of the servers that are known
_log = logging.getLogger("trireme.disaggregation")


class ServerSet:
    """The servers of one deployment, for one event loop.

    DNS is asked when there is a prompt, and a DNS that is away, or has no address, takes no server away.
    """

    def __init__(self, spec: PrefillServersSpec) -> None:
        self._fixed = [PrefillServer(url, spec) for url in spec.urls if not is_server_name(url)]
        self._names = [_OfName(read_server_name(url), spec) for url in spec.urls if is_server_name(url)]

    async def servers(self) -> list[PrefillServer]:
        """Return the servers of now, at most a moment later."""
        asking = [task for name in self._names if (task := name.asked()) is not None]
        if asking:
            await asyncio.wait(asking, timeout=_WAIT_S)
        return [*self._fixed, *(server for name in self._names for server in name.servers.values())]

    async def close(self) -> None:
        """Close all connections; what is asked on them ends."""
        for server in self._fixed:
            await server.close()
        for name in self._names:
            await name.close()


class _OfName:
    """The servers of one name. Attributes: `servers`: by address."""

    def __init__(self, name: ServerName, spec: PrefillServersSpec) -> None:
        self.servers: dict[str, PrefillServer] = {}
        self._name, self._spec = name, spec
        self._leaving: list[PrefillServer] = []
        self._asking: asyncio.Task[None] | None = None
        self._asked_s = self._began_s = -_ASK_S

    def asked(self) -> "asyncio.Task[None] | None":
        """Return a question to DNS that is worth a moment's wait; None: its last answer will do, or it is slow."""
        now_s = time.monotonic()
        if self._asking is None and now_s - self._asked_s >= _ASK_S:
            self._began_s, self._asking = now_s, asyncio.create_task(self._ask())
        return self._asking if now_s - self._began_s < _WAIT_S else None

    async def close(self) -> None:
        """Close all connections; what is asked on them ends."""
        if self._asking is not None:
            self._asking.cancel()
        for server in (*self.servers.values(), *self._leaving):
            await server.close()

    async def _ask(self) -> None:
        try:
            if addresses := await addresses_of(self._name):
                self._change(addresses)
            at_rest = [server for server in self._leaving if server.num_asked == 0]
            self._leaving = [server for server in self._leaving if server.num_asked]
            for server in at_rest:
                await server.close()
        except Exception:  # the next answer may be a better one
            _log.exception("the prefill servers of %s cannot be brought up to date", self._name.url)
        finally:
            self._asked_s, self._asking = time.monotonic(), None

    def _change(self, addresses: list[str]) -> None:
        self._leaving += [self.servers.pop(address) for address in list(self.servers) if address not in addresses]
        certified = self._name.certified_host if self._name.is_tls else None
        for address in addresses:
            if address not in self.servers:
                url = self._name.url_of(address)
                self.servers[address] = PrefillServer(url, self._spec, certified_host=certified)
