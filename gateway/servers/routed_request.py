# SPDX-License-Identifier: Apache-2.0
"""A request on its way through the servers of a pool: to the one that suits it, and to another where that one fails.

Before its first chunk a request is simply asked once more elsewhere. A stream that has begun goes on elsewhere, with
the tokens that its caller has; it waits for a server that has room, for its caller is in the middle of a sentence.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncGenerator, Sequence
from typing import NamedTuple, Protocol

from clients.infer_messages import GenerateChunk, GenerateRequest
from gateway.served_models import ServedModel
from gateway.servers.asked_server import AskedServer
from gateway.servers.failures import may_do_better
from gateway.servers.retry_budget import RetryBudget
from gateway.servers.server import Server
from gateway.servers.stream_joint import OtherAnswerError, StreamJoint
from trireme.base.errors import RequestError, ServingError

_MOST_MOVES = 5  # of one stream
_LONGEST_GAP_S = 20.0  # of a stream that no server takes
_REST_S, _LONGEST_REST_S = 0.25, 2.0  # once all servers have been asked
_log = logging.getLogger("trireme.gateway")


class Servers(Protocol):
    """The servers that a request may go to."""

    def fit(self, model: str, tried: Sequence[Server]) -> list[Server]:
        """Return those that take requests for a model and were not tried."""
        ...

    def choose(self, model: str, numbers: Sequence[int], tried: Sequence[Server], *, is_session: bool) -> Server:
        """Return the one for a prompt.

        Raises:
            Unavailable: there is none.
        """
        ...

    def has_others(self, unfit: Sequence[Server]) -> bool:
        """Return whether there are servers but some, well or not."""
        ...

    def note_move(self, gap_s: float) -> None:
        """Note that a stream has gone on elsewhere, and how long its caller waited for the next token."""
        ...


class Route(NamedTuple):
    """The facts of a request that decide where it goes.

    Attributes:
        numbers: of its prompt's beginnings.
        is_session: whether the first of them is that of a session.
        deadline_s: by the clock of the event loop.
        silence_s: a stream that says nothing for so long has lost its server.
    """

    model: ServedModel
    numbers: Sequence[int]
    is_session: bool
    deadline_s: float
    silence_s: float


class Budgets(NamedTuple):
    """The budgets of a pool: of second tries, and of streams that go on elsewhere."""

    retries: RetryBudget
    moves: RetryBudget


class RoutedRequest:
    """A request to the servers of a pool."""

    def __init__(self, request: GenerateRequest, route: Route, servers: Servers, budgets: Budgets) -> None:
        self._request, self._route, self._servers, self._budgets = request, route, servers, budgets
        self._joint: StreamJoint | None = None
        if request.stream and (request.num_return_sequences or 1) == 1:
            self._joint = StreamJoint(request)
        self._now_s = asyncio.get_running_loop().time
        self._tried: list[Server] = []
        self._last_url = ""
        self._num_moves = 0
        self._last_chunk_s = 0.0
        self._rest_s = _REST_S
        self._broke_by: ServingError | None = None  # the error that a stream goes on after, until it does
        self._broke_s = 0.0
        self._unfit: list[Server] = []  # that cannot go on with this stream, such as those of another release

    async def chunks(self) -> AsyncGenerator[GenerateChunk, None]:
        """Yield the chunks of the answer; closing the iterator cancels the request.

        Raises:
            ServingError: as `AsyncTritonClient.generate`, by the last server that was asked, or the one that failed in
                the middle of a stream that could not go on.
        """
        has_begun = False
        while True:
            try:
                async with contextlib.aclosing(self._ask_one()) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
            except ServingError as exc:
                if self._joint is not None and self._joint.is_over:
                    return  # the caller has the whole answer
                if has_begun:
                    await self._find_way_on(exc)
                elif not self._may_try_again(exc):
                    raise
                _log.warning("a request goes to another server than %s: %s", self._last_url, exc.message)
            else:
                return

    async def _ask_one(self) -> AsyncGenerator[GenerateChunk, None]:
        """Yield what is new in the chunks of one server."""
        model, numbers, is_session, deadline_s, silence_s = self._route
        server = self._servers.choose(model.triton_model, numbers, self._passed_over, is_session=is_session)
        self._tried.append(server)
        self._last_url = server.url
        joint = self._joint
        release = model.release if joint is None or joint.release is None else joint.release
        is_pinned = release is not None and bool(model.pinning_model)
        answer = ask(
            server,
            self._request if joint is None else joint.begin(),
            model=model.pinning_model if is_pinned else model.triton_model,
            release=release if is_pinned else None,
            timeout_s=deadline_s - self._now_s(),
            silence_s=silence_s,
            numbers=numbers,
        )
        async with contextlib.aclosing(answer) as chunks:
            async for chunk in chunks:
                new = chunk if joint is None else joint.of(chunk)
                if new is None:
                    continue
                if self._broke_by is not None:
                    self._broke_by, self._tried = None, [server]
                    self._servers.note_move(self._now_s() - self._last_chunk_s)
                self._last_chunk_s = self._now_s()
                yield new

    def _may_try_again(self, exc: ServingError) -> bool:
        """Return whether a request that nobody has answered goes to a second server, and pay for it."""
        return (
            len(self._tried) == 1
            and may_do_better(exc)
            and bool(self._servers.fit(self._route.model.triton_model, self._tried))
            and self._budgets.retries.take()
        )

    async def _find_way_on(self, exc: ServingError) -> None:
        """Return once another server may go on with a stream.

        Raises:
            ServingError: none may, or none did for too long; it is that which broke the stream.
        """
        if self._broke_by is None:
            can_go_on = self._joint is not None and self._joint.can_go_on and self._num_moves < _MOST_MOVES
            if not (can_go_on and may_do_better(exc) and self._budgets.moves.take()):
                raise exc
            self._num_moves += 1
            self._broke_by, self._broke_s, self._rest_s = exc, self._now_s(), _REST_S
        elif isinstance(exc, RequestError | OtherAnswerError):
            _log.warning("%s cannot go on with a stream: %s", self._last_url, exc.message)
            self._unfit.append(self._tried.pop())
        elif not may_do_better(exc):
            raise self._broke_by
        until_s = min(self._broke_s + _LONGEST_GAP_S, self._route.deadline_s)
        while not self._servers.fit(self._route.model.triton_model, self._passed_over):
            wait_s = self._rest_s * random.uniform(0.5, 1.0)  # streams that broke together do not come together
            if self._now_s() + wait_s > until_s or not self._servers.has_others(self._unfit):
                raise self._broke_by
            await asyncio.sleep(wait_s)
            self._rest_s = min(2 * self._rest_s, _LONGEST_REST_S)
            self._tried.clear()

    @property
    def _passed_over(self) -> list[Server]:
        return [*self._tried, *self._unfit]


async def ask(
    server: Server,
    request: GenerateRequest,
    *,
    model: str,
    release: int | None,
    timeout_s: float,
    silence_s: float,
    numbers: Sequence[int],
) -> AsyncGenerator[GenerateChunk, None]:
    """Yield the chunks of one server, and note what its answer says about it.

    Raises:
        ServingError: as `AsyncTritonClient.generate`.
    """
    answer = server.client.generate(
        request, model=model, release=release, timeout_s=max(timeout_s, 0.001), silence_s=silence_s
    )
    with AskedServer(server) as asked:
        async with contextlib.aclosing(answer) as chunks:
            async for chunk in chunks:
                if not asked.has_begun:
                    asked.note_answer()
                    server.prefixes.add(numbers)
                yield chunk
