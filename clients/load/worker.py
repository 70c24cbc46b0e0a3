# SPDX-License-Identifier: Apache-2.0
"""The worker process of the built-in load client: it makes its part of the plan, waits for the start, and sends.

Processes share the load because grpcio takes some 15,000 responses a second on one core, and a client that is short of
CPU measures itself: each says how much it used.
"""

import asyncio
import contextlib
import gc
import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from clients.load.arrival_process import closed_loop, open_loop
from clients.load.load_options import Load
from clients.load.load_plan import Session
from clients.load.send import Sender, connect
from clients.load.server_down import not_ready
from clients.load.sessions_ahead import SessionsAhead
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord
from trireme.base.errors import ServerError, ServingError

_PREPARE_S = 5.0  # of a closed loop without an end, so long; the rest is written while it runs
_AHEAD_OF_USER = 2  # sessions: users who go in waves want a new one all at once
_TELL_S = 0.5
GIVE_UP_S = 10.0  # nobody has answered for so long: the server is gone


class Planned(msgspec.Struct, frozen=True, tag=True):
    """The message of a worker that makes its plan, with how far it is."""

    num_sessions: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """The message with the requests that have ended since the last one."""

    records: list[LoadRecord]


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The message of a worker that waits for the start."""

    num_sessions: int | None  # None: it does not know


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The message of a worker that could not begin, or go on.

    `error` is an error with its token (`trireme.base.errors`).
    """

    error: str


class Found(msgspec.Struct, frozen=True, tag=True):
    """The message of a worker that is done.

    Attributes:
        records: requests that have ended since its last message.
        cpu: samples, the last one at its end.
        unanswered_s: how long nobody had answered at its end; it ends by itself at `GIVE_UP_S`.
        unended_ns: when requests were due that ran when it was stopped.
    """

    records: list[LoadRecord]
    cpu: list[CpuSample]
    unanswered_s: float
    unended_ns: list[int]


Message = Planned | Progress | Ready | Failed | Found
START, STOP = b"start", b"stop"


def work(load: Load, number: int, pipe: Connection) -> None:
    """Run worker `number` of `load.num_processes`; this is the process."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the parent says when to stop
        signal.signal(each, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="end-with-parent", daemon=True).start()
    try:
        message: Message = asyncio.run(_Worker(load, number, pipe).run())
    except Exception as exc:
        message = Failed(str(_as_serving_error(exc)))
    _tell(pipe, message)


def _end_with_parent() -> None:
    """End this process at once with its parent: nobody would take what is found, nor end the load."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _as_serving_error(exc: Exception) -> ServingError:
    """Return an error out of its task groups; an unexpected one with its type and place."""
    while isinstance(exc, ExceptionGroup):
        exc = exc.exceptions[0]
    if isinstance(exc, ServingError):
        return exc
    ours = Path(__file__).parent
    place = [frame for frame in traceback.extract_tb(exc.__traceback__) if Path(frame.filename).parent == ours][-1]
    return ServerError(
        f"a process of the load client failed: {type(exc).__name__}: {exc} ({Path(place.filename).name}, line "
        f"{place.lineno}); it should not: report it with the command and the workload"
    )


def _tell(pipe: Connection, message: Message) -> None:
    pipe.send_bytes(msgspec.msgpack.encode(message))


def num_users_of(load: Load, number: int) -> int:
    """Return the number of a closed loop's users in one process: user u is in process u modulo their number."""
    return len(range(number, load.num_users or 0, load.num_processes))


def sessions_of(load: Load, number: int) -> Iterator[Session]:
    """Yield the sessions of one process: by turns of the users, where there are some.

    A process with one user more than others has that user's sessions more: with as many it would be done earlier.
    """
    num_turns = load.num_users or load.num_processes
    return (session for index, session in enumerate(load.plan()) if index % num_turns % load.num_processes == number)


class _Worker:
    def __init__(self, load: Load, number: int, pipe: Connection) -> None:
        self._load = load
        self._number = number
        self._pipe = pipe
        self._records: list[LoadRecord] = []  # that the parent has not been told
        self._cpu: list[CpuSample] = []

    async def run(self) -> Found:
        load = self._load
        planned, is_whole = self._prepared()
        async with connect(load.url, load.access) as client:
            if not await client.is_ready(model=load.model):
                raise not_ready(load.url, load.model)
            gc.collect()  # takes most of a second of a large plan, so before the start is set
            gc.freeze()  # the plan is not looked through again while answers come
            _tell(self._pipe, Ready(len(planned) if is_whole else None))
            start_ns = await asyncio.to_thread(self._start_ns)
            sender = Sender(
                client, model=load.model, start_ns=start_ns, timeout_s=load.timeout_s, num_retries=load.num_retries
            )
            is_over = asyncio.Event()
            asking = asyncio.create_task(self._put_on(sender, planned, start_ns=start_ns))
            telling = asyncio.create_task(self._report(sender, asking, start_ns, is_over))
            with contextlib.suppress(asyncio.CancelledError):  # it was stopped
                await asking
            self._sample(start_ns)
            is_over.set()
            await telling
        return Found(self._taken(), self._cpu, sender.server_down.seconds, sender.unended_ns)

    async def _put_on(self, sender: Sender, planned: list[Session], *, start_ns: int) -> None:
        load, note = self._load, self._note
        if load.num_users is None:
            await open_loop(sender, planned, start_ns=start_ns, note=note)
            return
        num_users = num_users_of(load, self._number)
        end_ns = None if load.duration_s is None else start_ns + round(load.duration_s * 1e9)
        with SessionsAhead(planned, self._rest, num_ahead=_AHEAD_OF_USER * num_users) as sessions:
            await asyncio.sleep((start_ns - time.monotonic_ns()) / 1e9)
            await closed_loop(sender, sessions, num_users=num_users, end_ns=end_ns, note=note)

    def _prepared(self) -> tuple[list[Session], bool]:
        """Return the sessions that are written before the start, and whether these are all."""
        load = self._load
        self._rest = sessions_of(load, self._number)
        is_whole = load.is_open or load.num_requests is not None
        end_s = math.inf if is_whole else time.monotonic() + _PREPARE_S
        tell_s = time.monotonic() + _TELL_S
        planned: list[Session] = []
        while (now_s := time.monotonic()) < end_s and (session := next(self._rest, None)) is not None:
            planned.append(session)
            if now_s >= tell_s:
                tell_s += _TELL_S
                _tell(self._pipe, Planned(len(planned)))
        return planned, is_whole

    def _start_ns(self) -> int:
        message = self._pipe.recv_bytes()
        return int(message.removeprefix(START))

    async def _report(
        self, sender: Sender, asking: "asyncio.Task[None]", start_ns: int, is_over: asyncio.Event
    ) -> None:
        while not is_over.is_set():
            self._sample(start_ns)
            # In a thread: the parent may be busy with what others told, and answers do not wait for that.
            await asyncio.to_thread(_tell, self._pipe, Progress(self._taken()))
            has_word = self._pipe.poll() and self._pipe.recv_bytes() == STOP
            if (has_word or sender.server_down.seconds >= GIVE_UP_S) and not sender.stop.is_set():
                sender.stop.set()
                asking.cancel()  # what runs; closing its connection under it can leave grpc.aio waiting for ever
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(is_over.wait(), _TELL_S)

    def _taken(self) -> list[LoadRecord]:
        taken, self._records = self._records, []
        return taken

    def _note(self, record: LoadRecord) -> None:
        self._records.append(record)

    def _sample(self, start_ns: int) -> None:
        self._cpu.append(CpuSample(time.monotonic_ns() - start_ns, time.process_time()))
