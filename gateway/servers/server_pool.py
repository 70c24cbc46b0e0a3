# SPDX-License-Identifier: Apache-2.0
"""The servers of a gateway together: who of them is well, and which of those is the one for a request."""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence

from clients.embedding_messages import EmbeddingRequest, Embeddings
from clients.infer_messages import GenerateChunk, GenerateRequest
from gateway.served_models import ServedModel
from gateway.servers.cache_feed import CacheFeed, FeedError
from gateway.servers.choice import choose
from gateway.servers.failures import NO_SERVER
from gateway.servers.load_page import PageError
from gateway.servers.prefixes import numbers_of
from gateway.servers.retry_budget import RetryBudget
from gateway.servers.routed_call import embed_by_one
from gateway.servers.routed_request import Budgets, Route, RoutedRequest
from gateway.servers.server import Server
from trireme.base.errors import AccessDenied, Unavailable

SILENCE_S = 30.0
_LOOK_S, _ANSWER_S = 1.0, 2.0
_UNTOLD_S = 30.0  # between two looks whether a server tells by now what its caches hold
READ_S = 0.5  # between two looks at a server's load, which tells of it ten times a second at most
_log = logging.getLogger("trireme.gateway")


class ServerPool:
    """The servers of a gateway.

    Args:
        servers: that are there for good; whoever made their clients closes them.
        is_changing: others come and go; without, there is at least one.
        has_affinity: whether prompts go where their beginnings were; if not, where the fewest requests run.
        silence_s: a stream that says nothing for so long goes on at another server.
        on_move: is told of each stream that goes on at another server, and how long its caller waited.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        *,
        is_changing: bool = False,
        has_affinity: bool = True,
        silence_s: float = SILENCE_S,
        on_move: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.servers, self._has_affinity, self._on_move = list(servers), has_affinity, on_move
        self._only = None if is_changing or len(servers) > 1 else self.servers[0]
        self._following: dict[Server, list[asyncio.Task[None]]] = {}
        self._silence_s = silence_s
        # A server takes all its streams with it, so each request may move once; second tries are for the few.
        self._budgets = Budgets(RetryBudget(), RetryBudget(share=1.0, most=1024.0))

    @property
    def is_single(self) -> bool:
        """Return whether there is one server for good, which nobody watches."""
        return self._only is not None

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Ask the servers inside the block, each second, which models take requests, and twice a second for their load.

        A single one is not asked.
        """
        if self._only is not None:
            yield
            return
        await asyncio.gather(*map(self._look, self.servers))
        for server in self.servers:
            self._begin_to_follow(server)
        try:
            yield
        finally:
            for task in itertools.chain.from_iterable(self._following.values()):
                task.cancel()

    async def add(self, server: Server) -> None:
        """Add a server, once it has been asked which models take requests there; inside `followed`."""
        await self._look(server)
        self.servers.append(server)
        self._begin_to_follow(server)

    def remove(self, server: Server) -> None:
        """Take a server out that was added, and at which no request runs."""
        self.servers.remove(server)
        for task in self._following.pop(server):
            task.cancel()

    async def is_ready(self, model: str) -> bool:
        """Return whether a server takes requests for a model now.

        Raises:
            AccessDenied: the only server does not accept this process.
        """
        if self._only is not None:
            return await self._only.client.is_ready(model=model)
        return any(server.takes(model) and server.ready is not None for server in self.servers)

    def generate(
        self, request: GenerateRequest, *, model: ServedModel, deadline_s: float, session: str = ""
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Return the chunks of a request's answer; closing the iterator cancels the request.

        A stream whose server fails goes on at another one, as if nothing had been.

        Args:
            deadline_s: of the answer, by the clock of the event loop.
            session: name of the conversation that it belongs to; "": none.

        Raises:
            ServingError: as `AsyncTritonClient.generate`; `Unavailable` with the reason `no_server` where none is well.
        """
        if self._only is not None:  # what is wrong with it is best told by itself
            timeout_s = max(deadline_s - asyncio.get_running_loop().time(), 0.001)
            name = model.triton_model if model.release is None else model.pinning_model
            return self._only.client.generate(request, model=name, release=model.release, timeout_s=timeout_s)
        for budget in self._budgets:
            budget.note_request()
        numbers = numbers_of(request, session=session, tenant=request.tenant or "") if self._has_affinity else []
        route = Route(model, numbers, bool(session), deadline_s, self._silence_s)
        return RoutedRequest(request, route, self, self._budgets).chunks()

    async def embed(self, request: EmbeddingRequest, *, model: ServedModel, deadline_s: float) -> Embeddings:
        """Return the vectors of texts by an embedding model.

        Args:
            deadline_s: by the clock of the event loop.

        Raises:
            ServingError: as `AsyncTritonClient.embed`; `Unavailable` with the reason `no_server` where none is well.
        """
        if self._only is not None:
            timeout_s = max(deadline_s - asyncio.get_running_loop().time(), 0.001)
            return await self._only.client.embed(request, model=model.triton_model, timeout_s=timeout_s)
        for budget in self._budgets:
            budget.note_request()
        return await embed_by_one(
            request, model=model.triton_model, servers=self, retries=self._budgets.retries, deadline_s=deadline_s
        )

    def fit(self, model: str, tried: Sequence[Server]) -> list[Server]:
        """Return the servers that take requests for a model and were not tried."""
        return [server for server in self.servers if server not in tried and server.takes(model)]

    def choose(
        self,
        model: str,
        numbers: Sequence[int],
        tried: Sequence[Server],
        *,
        is_session: bool,
        is_told: bool = True,
    ) -> Server:
        """Return the server for a prompt.

        Args:
            numbers: of the prompt, as `numbers_of` returns them.
            tried: servers that the request does not go to again.
            is_session: whether the first of the numbers is a session's.
            is_told: whether servers that tell what they have do so by such numbers.

        Raises:
            Unavailable: there is none.
        """
        fit = self.fit(model, tried)
        if not fit:
            said = f"none of the {len(self.servers)} servers takes" if self.servers else "no server is there that takes"
            raise Unavailable(
                f"{said} requests for {model} now; try again",
                reason=NO_SERVER,
                retry_after_ms=1000,
            )
        return choose(fit, numbers, model=model, is_session=is_session, is_told=is_told)

    def has_others(self, unfit: Sequence[Server]) -> bool:
        """Return whether there are servers but some, well or not."""
        return any(server not in unfit and not server.is_leaving for server in self.servers)

    def note_move(self, gap_s: float) -> None:
        """Note that a stream has gone on at another server, and how long its caller waited for the next token."""
        self._on_move(gap_s)

    def _begin_to_follow(self, server: Server) -> None:
        self._following[server] = [asyncio.create_task(self._follow(server))]
        if server.page is not None:
            self._following[server].append(asyncio.create_task(self._follow_load(server)))
        if server.feed is not None and self._has_affinity:
            self._following[server].append(asyncio.create_task(self._follow_cache(server, server.feed)))

    async def _follow(self, server: Server) -> None:
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look(server)

    async def _follow_load(self, server: Server) -> None:
        is_known = True
        while True:
            was_known = is_known
            try:
                await server.read_load()
                is_known = True
            except Exception as exc:  # one page that cannot be read keeps no other from being so
                is_known = False
                if was_known:
                    trace = None if isinstance(exc, PageError) else exc
                    _log.warning("the load of server %s is unknown: %s", server.url, exc, exc_info=trace)
            if is_known and not was_known:
                _log.info("the load of server %s is known again", server.url)
            await asyncio.sleep(READ_S)

    async def _follow_cache(self, server: Server, feed: CacheFeed) -> None:
        was_told = True
        while True:
            rest_s = _LOOK_S
            try:
                await feed.follow(server.prefixes)
            except FeedError as exc:
                if was_told:
                    _log.info("what the caches of server %s hold is guessed now: %s", server.url, exc)
                was_told = False
                rest_s = _UNTOLD_S if exc.is_untold else _LOOK_S
            except Exception:  # one server that cannot be read keeps no other from being so
                _log.exception("what the caches of server %s hold is guessed now", server.url)
            await asyncio.sleep(rest_s)

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
