# SPDX-License-Identifier: Apache-2.0
"""One process of the built-in load client: it makes its part of the plan, waits for the start, and asks.

Processes share the load because grpcio takes some 15,000 responses a second on one core, and a client that is short of
CPU measures itself: each says how much it used.
"""

import asyncio
import contextlib
import gc
import itertools
import signal
import time
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection

import msgspec

from clients.load.asking import Asker, Client, connect
from clients.load.load_options import Load
from clients.load.load_record import LoadRecord
from clients.load.loops import closed_loop, open_loop
from clients.load.openai_client import not_ready
from clients.load.plan import Session
from ensemble_configs.errors import ServingError, Unavailable

_PREPARE_S = 5.0  # of a closed loop without an end, so long; the rest is written while it runs
_TELL_S = 0.5


class CpuSample(msgspec.Struct, frozen=True):
    """How much CPU a process had used by then."""

    at_ns: int  # from the start of the run
    cpu_s: float


class Progress(msgspec.Struct, frozen=True, tag=True):
    """How far a worker is."""

    num_done: int
    num_failed: int


class Ready(msgspec.Struct, frozen=True, tag=True):
    """A worker waits for the start."""

    num_sessions: int | None  # None: it does not know


class Failed(msgspec.Struct, frozen=True, tag=True):
    """A worker could not begin, or go on."""

    message: str
    is_usage: bool


class Found(msgspec.Struct, frozen=True, tag=True):
    """A worker is done."""

    records: list[LoadRecord]
    cpu: list[CpuSample]


Message = Progress | Ready | Failed | Found
START, STOP = b"start", b"stop"


def work(load: Load, number: int, pipe: Connection) -> None:
    """The process: worker `number` of `load.num_processes`."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent says when to stop
    try:
        _tell(pipe, asyncio.run(_Worker(load, number, pipe).run()))
    except ServingError as exc:
        _tell(pipe, Failed(exc.message, is_usage=not isinstance(exc, Unavailable)))
    except (BrokenPipeError, EOFError):  # the parent is gone
        pass


def _tell(pipe: Connection, message: Message) -> None:
    pipe.send_bytes(msgspec.msgpack.encode(message))


class _Worker:
    def __init__(self, load: Load, number: int, pipe: Connection) -> None:
        self._load = load
        self._number = number
        self._pipe = pipe
        self._records: list[LoadRecord] = []
        self._num_failed = 0
        self._cpu: list[CpuSample] = []

    async def run(self) -> Message:
        load = self._load
        planned, is_whole = self._prepared()
        async with connect(load.url) as client:
            if not await client.is_ready(model=load.model):
                raise not_ready(load.url, load.model)
            _tell(self._pipe, Ready(len(planned) if is_whole else None))
            start_ns = await asyncio.to_thread(self._start_ns)
            gc.collect()
            gc.freeze()  # the plan is not looked through again while answers come
            stop = asyncio.Event()
            telling = asyncio.create_task(self._report(start_ns, stop, client))
            await self._put_on(Asker(
                client, model=load.model, start_ns=start_ns, timeout_s=load.timeout_s, num_retries=load.num_retries
            ), planned if is_whole else itertools.chain(planned, self._rest), start_ns=start_ns, stop=stop)  # fmt: skip
            self._sample(start_ns)
            telling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await telling
        return Found(self._records, self._cpu)

    async def _put_on(self, asker: Asker, sessions: Iterable[Session], *, start_ns: int, stop: asyncio.Event) -> None:
        load, note = self._load, self._note
        if load.num_users is None:
            await open_loop(asker, sessions, start_ns=start_ns, note=note, stop=stop)
            return
        share, more = divmod(load.num_users, load.num_processes)
        end_ns = None if load.duration_s is None else start_ns + round(load.duration_s * 1e9)
        await asyncio.sleep((start_ns - time.monotonic_ns()) / 1e9)
        await closed_loop(asker, sessions, num_users=share + (self._number < more), end_ns=end_ns, note=note, stop=stop)

    def _prepared(self) -> tuple[list[Session], bool]:
        """Its sessions, of all by turns; and whether those are all."""
        load = self._load
        self._rest: Iterator[Session] = itertools.islice(load.plan(), self._number, None, load.num_processes)
        if load.is_open or load.num_requests is not None:
            return list(self._rest), True
        end_s = time.monotonic() + _PREPARE_S
        return list(itertools.takewhile(lambda _: time.monotonic() < end_s, self._rest)), False

    def _start_ns(self) -> int:
        message = self._pipe.recv_bytes()
        return int(message.removeprefix(START))

    async def _report(self, start_ns: int, stop: asyncio.Event, client: Client) -> None:
        while True:
            self._sample(start_ns)
            _tell(self._pipe, Progress(len(self._records), self._num_failed))
            if self._pipe.poll() and self._pipe.recv_bytes() == STOP:
                stop.set()
                await client.close()  # what runs ends as cancelled
            await asyncio.sleep(_TELL_S)

    def _note(self, record: LoadRecord) -> None:
        self._records.append(record)
        self._num_failed += not record.is_done

    def _sample(self, start_ns: int) -> None:
        self._cpu.append(CpuSample(time.monotonic_ns() - start_ns, time.process_time()))
