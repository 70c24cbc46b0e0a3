# SPDX-License-Identifier: Apache-2.0
"""The built-in client's processes: they begin together, are stopped together, and what they noted is put together."""

import contextlib
import multiprocessing
import signal
import time
from collections.abc import Callable, Container, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import msgspec

from clients.error_tokens import parse_error
from clients.load.load_options import Load
from clients.load.worker import GIVE_UP_S, START, STOP, Failed, Found, Message, Planned, Progress, Ready, work
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import LoadRecord, Unended
from trireme.base.errors import ServerError
from trireme.base.known_types import known

_LEAD_S = 0.2  # from the word to the start, that all have heard it
_END_S = 10.0  # for a process that is done to end
_LOOK_S = 0.2  # how soon a signal is seen


class Outcome(msgspec.Struct, kw_only=True):
    """The outcome of a load.

    Attributes:
        start_ns: on the monotonic clock.
        records: records in the order in which requests were due.
        cpu: samples of each process.
        was_interrupted: a signal ended it.
        unanswered_s: how long nobody had answered at the end, in the process with the longest such time.
        unended: what ran when it was stopped; None: nothing did.
    """

    start_ns: int
    records: list[LoadRecord]
    cpu: list[list[CpuSample]]
    was_interrupted: bool
    unanswered_s: float
    unended: Unended | None


PlannedSoFar = Callable[[int], None]
Began = Callable[[int, int | None], None]
Ended = Callable[[list[LoadRecord]], None]


def run_processes(
    load: Load,
    *,
    planned: PlannedSoFar = lambda _: None,
    began: Began = lambda *_: None,
    ended: Ended = lambda _: None,
) -> Outcome:
    """Put a load on a server. Ctrl-C, SIGTERM or SIGHUP end it, with what had ended by then; twice, without.

    Args:
        planned: called with the number of sessions so far, while none is asked.
        began: called just before the start with the start (ns, monotonic clock) and the number of sessions, if known.
        ended: called with the requests that have ended since its last call, twice a second and at the end.

    Raises:
        Unavailable: no server takes requests there.
        RequestError, SpecError: the load is not what it should be.
        ServerError: a process of the client failed, or died.
    """
    with _started(load) as pipes:
        sessions = _ready(pipes, planned)
        start_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
        began(start_ns, None if None in sessions else sum(count or 0 for count in sessions))
        records: list[LoadRecord] = []

        def take(more: list[LoadRecord]) -> None:
            records.extend(more)
            ended(more)

        with noted_signals() as signals:
            for pipe in pipes:
                pipe.send_bytes(START + str(start_ns).encode())
            found = _gathered(pipes, take, signals)
    return Outcome(
        start_ns=start_ns,
        records=sorted(records, key=lambda record: record.due_ns),
        cpu=[one.cpu for one in found],
        was_interrupted=bool(signals),
        unanswered_s=max(one.unanswered_s for one in found),
        unended=_unended(found),
    )


@contextlib.contextmanager
def _started(load: Load) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")  # gRPC's threads do not survive a fork
    processes: list[SpawnProcess] = []
    pipes = []
    try:
        for number in range(load.num_processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=work, args=(load, number, theirs), name=f"load-{number}", daemon=True)
            process.start()
            theirs.close()
            processes.append(process)
            pipes.append(ours)
        yield pipes
    except BaseException:
        for process in processes:  # nobody takes what they find
            process.kill()
        raise
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(_END_S)
            if process.is_alive():
                process.kill()


@contextlib.contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Note Ctrl-C, SIGTERM and SIGHUP; an exception in the middle of a message would lose it.

    The second signal raises KeyboardInterrupt.
    """
    noted: list[int] = []

    def note(number: int, _frame: object) -> None:
        if noted:  # meant it
            raise KeyboardInterrupt
        noted.append(number)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    heeded = [number for number, handler in before.items() if handler != signal.SIG_IGN]  # nohup ignores one
    try:
        for number in heeded:
            signal.signal(number, note)
        yield noted
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def _ready(pipes: list[Connection], planned: PlannedSoFar) -> list[int | None]:
    """Return how many sessions each process has, once all wait for the start."""
    counts = [0] * len(pipes)
    ready: dict[int, int | None] = {}
    while len(ready) < len(pipes):
        for number, message in _messages(pipes, ready):
            match message:
                case Planned():
                    counts[number] = message.num_sessions
                    planned(sum(counts))
                case Ready():
                    ready[number] = message.num_sessions
    return [ready[number] for number in range(len(pipes))]


def _gathered(pipes: list[Connection], take: Ended, signals: list[int]) -> list[Found]:
    """Return what each process found, once all are done.

    They are stopped by a signal, and where one found that nobody answers.
    """
    found: dict[int, Found] = {}
    is_stopping = False
    while len(found) < len(pipes):
        for number, message in _messages(pipes, found):
            match message:
                case Progress():
                    take(message.records)
                case Found():
                    found[number] = message
                    take(message.records)
        is_given_up = any(one.unanswered_s >= GIVE_UP_S for one in found.values())
        if (signals or is_given_up) and not is_stopping:
            is_stopping = True
            for number, pipe in enumerate(pipes):
                if number not in found:
                    with contextlib.suppress(ConnectionError):  # it was done at this moment
                        pipe.send_bytes(STOP)
    return [found[number] for number in range(len(pipes))]


def _unended(found: list[Found]) -> Unended | None:
    due_ns = [at_ns for one in found for at_ns in one.unended_ns]
    if not due_ns:
        return None
    return Unended(count=len(due_ns), since_ns=min(due_ns), stopped_ns=max(one.cpu[-1].at_ns for one in found))


def _messages(pipes: list[Connection], done: Container[int]) -> Iterator[tuple[int, Message]]:
    """Yield messages of the processes that are not done, after a short wait at most."""
    for pipe in wait([pipe for number, pipe in enumerate(pipes) if number not in done], _LOOK_S):
        assert isinstance(pipe, Connection)
        yield pipes.index(pipe), _receive(pipe)


def _receive(pipe: Connection) -> Message:
    try:
        message: Message = msgspec.msgpack.decode(pipe.recv_bytes(), type=known(Message))
    except (EOFError, ConnectionError) as exc:
        raise ServerError(
            "a process of the load client died; was it killed for memory? take fewer requests or --processes"
        ) from exc
    if isinstance(message, Failed):
        raise parse_error(message.error)
    return message
