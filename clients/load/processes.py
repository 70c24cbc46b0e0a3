# SPDX-License-Identifier: Apache-2.0
"""The built-in client's processes: they begin together, are stopped together, and what they noted is put together."""

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

import msgspec

from clients.load.load_options import Load
from clients.load.load_record import LoadRecord
from clients.load.worker import START, STOP, CpuSample, Failed, Found, Message, Progress, Ready, work
from ensemble_configs.errors import RequestError, ServerError, Unavailable

_LEAD_S = 0.2  # from the word to the start, that all have heard it
_STOP_S = 10.0  # for what runs to end, once it is to stop


class Outcome(msgspec.Struct, kw_only=True):
    """What a load was."""

    start_ns: int  # on the monotonic clock
    records: list[LoadRecord]  # in the order in which they were due
    cpu: list[list[CpuSample]]  # of each process
    was_interrupted: bool


Began = Callable[[int, int | None], None]
Told = Callable[[int, int], None]


def run_processes(load: Load, *, began: Began = lambda *_: None, told: Told = lambda *_: None) -> Outcome:
    """Put a load on a server.

    Args:
        began: is told the start (ns, monotonic clock) and the number of sessions, where it is known, just before.
        told: is told how many requests have ended, and how many of them badly.

    Raises:
        Unavailable: no server takes requests there.
        RequestError, SpecError: the load is not what it should be.
        ServerError: a process of the client died.
    """
    with _started(load) as pipes:
        sessions = [_ready(pipe) for pipe in pipes]
        start_ns = time.monotonic_ns() + round(_LEAD_S * 1e9)
        began(start_ns, None if None in sessions else sum(count or 0 for count in sessions))
        for pipe in pipes:
            pipe.send_bytes(START + str(start_ns).encode())
        found, was_interrupted = _gathered(pipes, told)
    records = sorted((record for one in found for record in one.records), key=lambda record: record.due_ns)
    return Outcome(start_ns=start_ns, records=records, cpu=[one.cpu for one in found], was_interrupted=was_interrupted)


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
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(_STOP_S)
            if process.is_alive():
                process.kill()


def _ready(pipe: Connection) -> int | None:
    message = _receive(pipe)
    assert isinstance(message, Ready)
    return message.num_sessions


def _gathered(pipes: list[Connection], told: Told) -> tuple[list[Found], bool]:
    """What each found, once all are done. Ctrl-C stops them, and what had ended by then is taken."""
    found: dict[int, Found] = {}
    progress = [Progress(0, 0)] * len(pipes)
    was_interrupted = False
    while len(found) < len(pipes):
        try:
            for pipe in wait([pipe for number, pipe in enumerate(pipes) if number not in found]):
                assert isinstance(pipe, Connection)
                number, message = pipes.index(pipe), _receive(pipe)
                match message:
                    case Found():
                        found[number] = message
                    case Progress():
                        progress[number] = message
            told(sum(one.num_done for one in progress), sum(one.num_failed for one in progress))
        except KeyboardInterrupt:
            if was_interrupted:  # meant it
                raise
            was_interrupted = True
            for number, pipe in enumerate(pipes):
                if number not in found:
                    pipe.send_bytes(STOP)
    return [found[number] for number in range(len(pipes))], was_interrupted


def _receive(pipe: Connection) -> Message:
    try:
        message: Message = msgspec.msgpack.decode(pipe.recv_bytes(), type=Message)
    except (EOFError, ConnectionError) as exc:
        raise ServerError(
            "a process of the load client died; was it killed for memory? take fewer requests or --processes"
        ) from exc
    if isinstance(message, Failed):
        raise (RequestError if message.is_usage else Unavailable)(message.message)
    return message
