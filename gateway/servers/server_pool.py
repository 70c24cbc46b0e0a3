# SPDX-License-Identifier: Apache-2.0
"""The servers of a gateway together: each request goes to one that is well, and once more elsewhere if that one fails.

A request goes to a second server only before its first chunk: what a caller has seen is not said again.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.api_error import NO_ROOM
from gateway.servers.choice import choose
from gateway.servers.prefixes import numbers_of
from gateway.servers.retry_budget import RetryBudget
from gateway.servers.server import Server
from trireme.base.errors import (
    AccessDenied,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServerError,
    ServingError,
    Unavailable,
)

_LOOK_S, _ANSWER_S = 1.0, 2.0
# The server is there, and says that it has no room: no fault of its own, and another one may have room.
_NO_ROOM = NO_ROOM | {"kv_cache", "too_many_bytes"}
_log = logging.getLogger("trireme.gateway")


class ServerPool:
    """The servers of a gateway.

    Args:
        servers: at least one; whoever made their clients closes them.
        has_affinity: whether prompts go where their beginnings were; if not, where the fewest requests run.
    """

    def __init__(self, servers: Sequence[Server], *, has_affinity: bool = True) -> None:
        self.servers, self._has_affinity = servers, has_affinity
        self._retries = RetryBudget()

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Ask the servers inside the block, each second, which models take requests; a single one is not asked."""
        if len(self.servers) == 1:
            yield
            return
        await asyncio.gather(*map(self._look, self.servers))
        following = [asyncio.create_task(self._follow(server)) for server in self.servers]
        try:
            yield
        finally:
            for task in following:
                task.cancel()

    async def is_ready(self, model: str) -> bool:
        """Return whether a server takes requests for a model now.

        Raises:
            AccessDenied: the only server does not accept this process.
        """
        if len(self.servers) == 1:
            return await self.servers[0].client.is_ready(model=model)
        return any(server.takes(model) and server.ready is not None for server in self.servers)

    def generate(
        self, request: GenerateRequest, *, model: str, timeout_s: float, session: str = ""
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Return the chunks of a request's answer; closing the iterator cancels the request.

        Args:
            session: name of the conversation that it belongs to; "": none.

        Raises:
            ServingError: as `AsyncTritonClient.generate`; `Unavailable` with the reason `no_server` where none is well.
        """
        if len(self.servers) == 1:  # what is wrong with it is best told by itself
            return self.servers[0].client.generate(request, model=model, timeout_s=timeout_s)
        return self._of_a_fit_one(request, model, timeout_s, session)

    async def _of_a_fit_one(
        self, request: GenerateRequest, model: str, timeout_s: float, session: str
    ) -> AsyncGenerator[GenerateChunk, None]:
        self._retries.note_request()
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        numbers = numbers_of(request, session=session, tenant=request.tenant or "") if self._has_affinity else []
        tried: list[Server] = []
        while True:
            server = self._choose(model, numbers, tried, is_session=bool(session))
            tried.append(server)
            has_begun = False
            try:
                chunks = self._ask(server, request, model, deadline_s - now_s(), numbers)
                async with contextlib.aclosing(chunks):
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
            except ServingError as exc:
                if has_begun or not self._may_try_again(exc, model, tried):
                    raise
                _log.warning("a request goes to another server than %s: %s", server.url, exc.message)
            else:
                return

    async def _ask(
        self, server: Server, request: GenerateRequest, model: str, timeout_s: float, numbers: Sequence[int]
    ) -> AsyncGenerator[GenerateChunk, None]:
        is_trial = server.begin()
        is_told = False
        try:
            async with contextlib.aclosing(
                server.client.generate(request, model=model, timeout_s=max(timeout_s, 0.001))
            ) as chunks:
                async for chunk in chunks:
                    if not is_told:
                        server.breaker.succeed()
                        server.prefixes.add(numbers)
                        is_told = True
                    yield chunk
        except ServingError as exc:
            if _is_fault(exc):
                server.breaker.fail(is_trial=is_trial)
                is_told = True
            elif isinstance(exc, RequestError | Unavailable):  # it answers
                server.breaker.succeed()
                is_told = True
            if isinstance(exc, Unavailable) and exc.facts.get("reason") in _NO_ROOM:
                hint_ms = exc.facts.get("retry_after_ms")
                server.note_full(hint_ms / 1000 if isinstance(hint_ms, int | float) else _LOOK_S)
            raise
        finally:
            server.num_running -= 1
            if not is_told:
                server.breaker.leave(is_trial=is_trial)

    def _choose(self, model: str, numbers: Sequence[int], tried: Sequence[Server], *, is_session: bool) -> Server:
        fit = self._fit(model, tried)
        if not fit:
            raise Unavailable(
                f"none of the {len(self.servers)} servers takes requests for {model} now; try again",
                reason="no_server",
                retry_after_ms=1000,
            )
        return choose(fit, numbers, is_session=is_session)

    def _fit(self, model: str, tried: Sequence[Server]) -> list[Server]:
        return [server for server in self.servers if server not in tried and server.takes(model)]

    def _may_try_again(self, exc: ServingError, model: str, tried: Sequence[Server]) -> bool:
        """Return whether a request goes to a second server, and pay for it."""
        return len(tried) == 1 and _may_do_better(exc) and bool(self._fit(model, tried)) and self._retries.take()

    async def _follow(self, server: Server) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look(server)

    async def _look(self, server: Server) -> None:
        ready = set()
        try:
            for model in server.models:
                if await server.client.is_ready(model=model, timeout_s=_ANSWER_S):
                    ready.add(model)
        except AccessDenied as exc:
            self._note(server, frozenset(), exc.message)
        except Exception as exc:  # one server that cannot be asked keeps no other from being so
            self._note(server, frozenset(), repr(exc))
        else:
            self._note(server, frozenset(ready), "")

    def _note(self, server: Server, ready: frozenset[str], why: str) -> None:
        is_first = server.ready is None
        if not server.note_ready(ready):
            return
        if ready != server.models:
            missing = ", ".join(sorted(server.models - ready))
            _log.warning("server %s takes no requests for %s%s", server.url, missing, why and f": {why}")
        elif not is_first:
            _log.info("server %s takes requests again", server.url)


def _is_fault(exc: ServingError) -> bool:
    """Return whether a server, and not a request, is at fault."""
    if isinstance(exc, Unavailable):
        return exc.facts.get("reason") not in _NO_ROOM
    return isinstance(exc, AccessDenied) or type(exc) is ServerError


def _may_do_better(exc: ServingError) -> bool:
    """Return whether another server may answer what one did not."""
    if isinstance(exc, (RequestTimeout, RequestCancelled)):
        return False
    return isinstance(exc, (Unavailable, AccessDenied)) or type(exc) is ServerError
