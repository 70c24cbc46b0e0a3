# SPDX-License-Identifier: Apache-2.0
"""The control channel between `trireme serve` and the adapters in Triton: count streams, close admission, end streams.

Each adapter has a socket of `trireme.base.unix_rpc` in a folder that only the server's owner can enter. Without the
folder (plain `tritonserver`) there is no control channel, and nothing else changes.
"""

import enum
import logging
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from serving.process.left_streams import LEFT_STREAMS
from serving.process.orphan_watch import end_with_server, is_stub
from serving.process.resumed_process import end_when_resumed
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.errors import ServingError, Unavailable
from trireme.base.unix_rpc import Handler, RpcServer, Say, call

_log = logging.getLogger("trireme.control_channel")

_ANSWER_S = 2.0
_TOLD_S = 0.5
_IS_ENGINE_UP = "is_engine_up"
_OPERATIONS = ("status", "leave", "drain", "cancel")
_OF_RELEASES = ("leave_release", "status_release", "cancel_release")  # each names a release
_LEFT = "left"  # the operation that names the streams which have lost their clients

Answer = Callable[[], Mapping[str, object]]


class Leaving(NamedTuple):
    """The operations on one release that an adapter serves beside its own; each returns the number of its streams."""

    leave: Callable[[str], int]  # sends no new request to it
    status: Callable[[str], int]
    cancel: Callable[[str], int]  # ends its streams


_NO_RELEASES = Leaving(*[lambda _: 0] * 3)  # of an adapter with its own release alone


class Streams(Protocol):
    """The streams of an adapter that generates."""

    @property
    def num_running(self) -> int:
        """Return how many requests have not had their last response."""

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every new request from now on with `because`."""

    def cancel_all(self, because: ServingError) -> None:
        """End every running request; each fails with `because`."""


def generation_handlers(service: Streams, *, is_engine_up: Callable[[], bool] | None = None) -> dict[str, Answer]:
    """Return the operations of an adapter that generates. Args: `is_engine_up`: asks its own engine, if it has one."""

    def status() -> Mapping[str, object]:
        answer: dict[str, object] = {"num_streams": service.num_running}
        return answer if is_engine_up is None else answer | {_IS_ENGINE_UP: is_engine_up()}

    def leave() -> Mapping[str, object]:
        service.refuse_new(
            Unavailable("this release is being taken out; send this without a release", reason="leaving")
        )
        return status()

    def drain() -> Mapping[str, object]:
        service.refuse_new(Unavailable("the server is shutting down; send this to another one", reason="draining"))
        return status()

    def cancel() -> Mapping[str, object]:
        service.cancel_all(Unavailable("the server shut down before this was done; send it again", reason="shutdown"))
        return status()

    return {"status": status, "leave": leave, "drain": drain, "cancel": cancel}


class ControlChannel:
    """The adapter's end of its control channel, which answers on threads of its own."""

    def __init__(
        self, args: Mapping[str, str], handlers: Mapping[str, Answer], leaving: Leaving = _NO_RELEASES
    ) -> None:
        """Listen, if there is a folder for that.

        Args:
            args: Triton's to `initialize`.
            handlers: by operation, with ``status`` for all others.
            leaving: operations on the releases that the adapter serves beside its own.
        """
        end_with_server()
        if is_stub():
            end_when_resumed()
        self._server: RpcServer | None = None
        run_dir = os.environ.get(RUN_DIR_VARIABLE)
        if run_dir:
            # Another name each time: Triton may load a version anew before it has unloaded the old instance.
            name = f"{args['model_name']}-{args['model_version']}-{secrets.token_hex(4)}.sock"
            self._server = RpcServer(Path(run_dir) / name, _operations(handlers) | _operations_of(leaving))

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()


def _operations(handlers: Mapping[str, Answer]) -> dict[str, Handler]:
    def left(request: Mapping[str, object], say: Say) -> Mapping[str, object]:
        del say
        if isinstance(names := request.get("streams"), list):
            LEFT_STREAMS.note(map(str, names))
        return handlers["status"]()

    return {_LEFT: left} | {name: _without_request(handlers.get(name, handlers["status"])) for name in _OPERATIONS}


def _operations_of(leaving: Leaving) -> dict[str, Handler]:
    def handler(count: Callable[[str], int]) -> Handler:
        return lambda request, _say: {"num_streams": count(str(request["release"]))}

    return {name: handler(count) for name, count in zip(_OF_RELEASES, leaving, strict=True)}


def _without_request(answer: Answer) -> Handler:
    return lambda _request, _say: answer()


def ask_all(
    run_dir: Path, operation: str, *, adapter: str = "", is_without_dead: bool = False, release: int | None = None
) -> int:
    """Ask every adapter of a server; return how many streams they hold. One stream is held by several adapters.

    Args:
        adapter: asks only the adapter of this model and version, such as "ensemble-2", or of all versions of a model.
        release: the release that `operation` is about.
        is_without_dead: counts no streams for an adapter that has died or was unloaded just now.

    Raises:
        Unavailable: an adapter does not answer.
    """
    num_streams, request = 0, {} if release is None else {"release": release}
    for path in sorted(run_dir.glob(f"{adapter}-*.sock" if adapter else "*.sock")):
        try:
            num_streams += int(str(call(path, operation, request, timeout_s=_ANSWER_S)["num_streams"]))
        except (OSError, ServingError) as exc:
            is_dead = isinstance(exc, ConnectionRefusedError | FileNotFoundError)
            if not (is_dead and is_without_dead):
                raise Unavailable(f"{path.stem} does not answer {operation!r}: {exc}", reason="no_answer") from exc
    return num_streams


def tell_left(run_dir: Path, names: list[str]) -> None:
    """Tell every adapter of a server which streams have lost their clients; skip an adapter that does not answer."""
    for path in run_dir.glob("*.sock"):
        try:
            call(path, _LEFT, {"streams": names}, timeout_s=_TOLD_S)
        except (OSError, ServingError) as exc:
            _log.debug("%s does not hear of clients that have left: %s", path.stem, exc)


class Pulse(enum.Enum):
    """The state of an adapter's process, as its control channel shows it."""

    ALIVE = "alive"
    ENGINE_DEAD = "engine dead"  # it lives, and starts its engine again
    SILENT = "silent"  # stopped, stuck, or slow
    DEAD = "dead"  # its socket file is there and nobody listens
    CLOSED = "closed"  # unloaded as it should be


def feel_pulse(path: Path, *, timeout_s: float) -> Pulse:
    """Ask the adapter behind one socket of a run dir, and return the state of its process.

    An adapter that is being unloaded may seem dead for a moment, found before its file was removed: ask twice.
    """
    try:
        answer = call(path, "status", timeout_s=timeout_s)
    except FileNotFoundError:
        return Pulse.CLOSED
    except ConnectionRefusedError:
        return Pulse.DEAD
    except (OSError, ServingError):
        return Pulse.SILENT
    return Pulse.ALIVE if answer.get(_IS_ENGINE_UP, True) else Pulse.ENGINE_DEAD
