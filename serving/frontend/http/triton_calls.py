# SPDX-License-Identifier: Apache-2.0
"""The calls of Triton's models, each in a task of its own that goes on for a moment when the client has left.

So the models answer before Triton sees a cancel, which it handles badly (`serving.frontend.grpc.client_streams`).
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any

from serving.frontend.common.departures import Departures
from serving.requests.request_parameters import STREAM_NAME

_WIND_UP_S = 20.0  # for models to answer calls that were left, as in serving.frontend.grpc.client_streams
_MAX_AHEAD = 256  # responses that a slow reader has not taken

Metadata = Sequence[tuple[str, str]]


class TritonCalls:
    """The calls of one event loop."""

    def __init__(self, departures: Departures) -> None:
        self._departures = departures
        self._ending: set[asyncio.Task[None]] = set()

    async def once(self, method: Any, message: Any, metadata: Metadata, *, is_told: bool) -> Any:
        """Return the response of a call that has one.

        Args:
            method: method of a `GRPCInferenceServiceStub` of an asyncio channel.
            message: the request; where it names a version, no split moves it.
            metadata: metadata beside the name that the call is given.
            is_told: whether the model hears of clients that leave; Triton cancels a call of a model that does not.

        Raises:
            grpc.aio.AioRpcError: the call failed.
        """
        name = self._departures.new_name()

        async def ask() -> Any:
            with self._pinned(name, message, is_told=is_told):
                return await method(message, metadata=[(STREAM_NAME, name), *metadata])

        task = asyncio.create_task(ask())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            self._leave(name, task, is_told=is_told)
            raise

    @asynccontextmanager
    async def stream(
        self, method: Any, message: Any, metadata: Metadata, *, is_told: bool
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Call a model that answers many times; yield an iterator over its responses, which come while it is read.

        Args:
            method: method of a `GRPCInferenceServiceStub` of an asyncio channel.
            message: the request.
            metadata: metadata beside the name that the call is given.
            is_told: whether the model hears of clients that leave.

        Raises:
            grpc.aio.AioRpcError: the call failed, while the responses are read.
        """
        name = self._departures.new_name()
        pinned = self._pinned(name, message, is_told=is_told)
        call = _StreamCall(method(metadata=[(STREAM_NAME, name), *metadata]), message, pinned)
        try:
            yield call.responses()
        finally:
            if not call.task.done():
                call.is_left = True
                self._leave(name, call.task, is_told=is_told)

    @contextmanager
    def _pinned(self, name: str, message: Any, *, is_told: bool) -> Iterator[None]:
        if not (is_told and message.model_version):
            yield
            return
        self._departures.pin(name)
        try:
            yield
        finally:
            self._departures.unpin(name)

    def _leave(self, name: str, task: asyncio.Task[Any], *, is_told: bool) -> None:
        if not is_told:
            task.cancel()
            return
        self._departures.leave([name])
        ending = asyncio.create_task(_wind_up(task))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)


class _StreamCall:
    def __init__(self, call: Any, message: Any, pinned: AbstractContextManager[None]) -> None:
        self.is_left = False
        self._queue: asyncio.Queue[Any] = asyncio.Queue(_MAX_AHEAD)
        self.task = asyncio.create_task(self._run(call, message, pinned))

    async def responses(self) -> AsyncIterator[Any]:
        while True:
            taking = asyncio.ensure_future(self._queue.get())
            try:
                await asyncio.wait({taking, self.task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                is_taken = taking.done()
                taking.cancel()
            if is_taken:
                yield taking.result()
                continue
            while not self._queue.empty():
                yield self._queue.get_nowait()
            self.task.result()  # raises the call's error
            return

    async def _run(self, call: Any, message: Any, pinned: AbstractContextManager[None]) -> None:
        with pinned:
            await call.write(message)
            await call.done_writing()
            async for response in call:
                while not self.is_left:
                    try:
                        self._queue.put_nowait(response)
                        break
                    except asyncio.QueueFull:
                        await asyncio.sleep(0.01)


async def _wind_up(task: asyncio.Task[Any]) -> None:
    await asyncio.wait({task}, timeout=_WIND_UP_S)
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()  # taken, so that asyncio does not report it
