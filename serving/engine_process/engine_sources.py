# SPDX-License-Identifier: Apache-2.0
"""The sources of an adapter's engine: a process that the adapter starts (as owner), or another owner's process.

One engine serves all models of a release: `tensorrt_llm` owns its process, `ensemble` is a client of it, a client. The
owner listens on a socket in the server's folder and hands it to each engine process that it starts, so clients wait in
the socket's queue while an engine is being restarted.
"""

import contextlib
import logging
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ensemble_configs.spec.end_times import GUARD_S
from ensemble_configs.spec.release_spec import ReleaseSpec
from serving.doctor.release_check import releases_in_use
from serving.engine_guard.gpu_memory import GpuMemory
from serving.engine_guard.guarded_process import EngineProcess, GuardedProcess, PlainProcess
from serving.engine_process.engine_messages import Channel, ChannelClosed, Report
from serving.engine_process.engine_start_up import read_info, wait_until_loaded
from serving.engines.providers import start_of_release
from serving.engines.seam.base import EngineInfo
from serving.engines.seam.engine_start import EngineStart
from serving.process.run_dir import run_dir
from serving.process.server_log import log_format
from trireme.base.errors import ServerError, Unavailable
from trireme.base.unix_socket import UnixListener, connect_socket

_log = logging.getLogger("trireme.engine_sources")

# Seconds after its connection was closed; the engine may use 5 s (CLOSE_TIMEOUT_S in engine_process) to end what it has
# started.
_KILL_AFTER_S = 7.0
_WHY_S = 0.5  # that callers may wait for the cause
_POLL_S = 0.02
# How long a client waits for the owner to exist: Triton loads models in any order, and an owner that loads is there.
_OWNER_APPEARS_S = 60.0


class OwnedEngine:
    """An engine process that this adapter starts and ends.

    Args:
        release_dir: version folder with the release.json that names the engine.
        listener: socket for clients of the engine.
        watchdog_s: seconds of silence after which the engine is ended; longer than the engine's longest step, and than
            a heartbeat of its process.
        is_inner: this source runs in the process of an engine that is loaded on demand.
        load_timeout_s: seconds after which an engine that has not loaded is ended; None: it may take for ever.
        plan: returns how the process is started, called at each start.
    """

    def __init__(
        self,
        release_dir: Path,
        listener: "EngineListener | None" = None,
        *,
        watchdog_s: float | None = None,
        is_inner: bool = False,
        load_timeout_s: float | None = None,
        plan: Callable[[], EngineStart] = EngineStart,
    ) -> None:
        self._is_inner = is_inner
        self.watchdog_s = watchdog_s
        self._load_timeout_s = load_timeout_s
        self._release_dir = release_dir
        self._listener = listener
        self._plan = plan
        self._close_timeout_s = 0.0
        self._memory = GpuMemory()
        self._held: str | None = None  # memory that an ended engine's GPUs have not got back
        self._pids: list[int] = []
        self._lock = threading.Lock()  # no process is started behind close()
        self._is_closing = False
        self._process: EngineProcess | None = None
        self._in_use = contextlib.ExitStack()  # the releases that it starts the engine from, between two starts too

    @classmethod
    def of_release(
        cls,
        release: ReleaseSpec,
        release_dir: Path,
        listener: "EngineListener | None" = None,
        *,
        is_inner: bool = False,
    ) -> "OwnedEngine":
        """Return the source of a release's engine, with the start and the watch that its deployment asks for."""
        is_outer = release.on_demand is not None and not is_inner  # it waits for its turn before it loads anything
        source = cls(
            release_dir,
            listener,
            watchdog_s=release.engine.watchdog_s,
            is_inner=is_inner,
            load_timeout_s=None if is_outer else release.engine.load_timeout_s,
            plan=partial(_start_of_outer if is_outer else start_of_release, release),
        )
        source._in_use.enter_context(releases_in_use(release))
        return source

    def connect(self) -> tuple[Channel, EngineInfo]:
        """Start a process, wait until it has loaded the engine, and return a channel to it and its description.

        Raises:
            ServerError: the engine could not be loaded; the text is the engine's own.
        """
        if self._held is not None and (held := self._memory.wait_until_free(self._pids)) is not None:
            raise Unavailable(f"the engine is not started again: {held}", reason="gpu_memory_held")
        self._held = None
        ours, theirs = socket.socketpair()
        channel = Channel(ours, Report)
        try:
            with theirs:
                process = self._start(theirs.fileno())
            info = wait_until_loaded(process, channel, self._load_timeout_s)
            process.note_loaded()
        except BaseException:
            channel.close()
            raise
        return channel, info

    def discard(self, *, ends_itself: bool) -> None:
        """Wait for the end of the process, kill it if it does not end, and wait until its memory is free.

        Args:
            ends_itself: the engine served, and sees the end of the connection, which is closed.
        """
        process = self._process
        if process is None:
            return
        if not process.wait(max(_KILL_AFTER_S, self._close_timeout_s) if ends_itself else 0):
            process.end()  # one that is still loading sees no hang-up
        self._pids = sorted(process.pids)
        self._held = self._memory.wait_until_free(self._pids)
        if self._held is not None:
            _log.error("%s", self._held)

    def why_ended(self) -> str:
        """Return the known cause of the end of an engine that served; empty: no cause is known."""
        return self._process.why_ended(_WHY_S) if self._process is not None else ""

    def close(self) -> None:
        """Start no process from now on."""
        with self._lock:
            self._is_closing = True
        self._in_use.close()
        if self._listener is not None:
            self._listener.close()

    @property
    def pid(self) -> int | None:
        """Return the process id of the engine or of its guard; None: there is no process."""
        return self._process.pid if self._process else None

    def _start(self, socket_number: int) -> EngineProcess:
        numbers = [socket_number]
        start = self._plan()
        python = start.python or _python()
        command = [python, "-m", "serving.engine_process.engine_loop", "--release", str(self._release_dir)]
        command += ["--run-dir", str(run_dir())]  # an engine's process, asked itself, would find another
        command += ["--log-format", log_format()]
        if self._is_inner:
            command.append("--inner")
        if self._listener is not None:
            numbers.append(self._listener.fileno())
        if start.is_guarded:
            self._memory.note_before_start()
        with self._lock:
            if self._is_closing:
                raise Unavailable("the engine is being closed", reason="shutdown")
            self._process = self._started(start, command, numbers)
            return self._process

    def _started(self, start: EngineStart, command: list[str], numbers: list[int]) -> EngineProcess:
        if start.close_timeout_s is not None:
            self._close_timeout_s = start.close_timeout_s + GUARD_S
            command += ["--close-timeout-s", str(start.close_timeout_s)]
        if not start.is_guarded:
            for option, number in zip(("--fd", "--clients-fd"), numbers, strict=False):
                command += [option, str(number)]
            return PlainProcess(start, command, fds=numbers, run_dir=run_dir())
        guard = [_python(), "-m", "serving.engine_guard"]
        return GuardedProcess(start, guard, command, fds=numbers, run_dir=run_dir())


class SharedEngine:
    """A client's source: the engine that another model of the release owns."""

    def __init__(self, name: str) -> None:
        """Args: `name` of the engine, by `named_engine`."""
        self.watchdog_s: float | None = None  # the owner watches the engine
        self._name = name
        self._is_closing = threading.Event()
        self._waiting: Channel | None = None

    def connect(self) -> tuple[Channel, EngineInfo]:
        """Wait for the owner, then for its engine, and return a channel to it and its description."""
        channel = self._waiting = Channel(self._call(), Report)
        if self._is_closing.is_set():  # perhaps before it could see this channel
            channel.close()
            raise Unavailable("the engine is being closed", reason="shutdown")
        try:
            return channel, read_info(channel)
        except ChannelClosed as exc:
            channel.close()
            raise ServerError("the engine that tensorrt_llm loads ended while loading; its log says why") from exc
        except BaseException:
            channel.close()
            raise
        finally:
            self._waiting = None

    def discard(self, *, ends_itself: bool) -> None:
        """Do nothing: the owner ends the process."""

    def why_ended(self) -> str:
        """Return nothing: the owner knows the cause."""
        return ""

    def close(self) -> None:
        """Make no connection from now on, and stop waiting for one."""
        self._is_closing.set()
        waiting = self._waiting
        if waiting is not None:
            waiting.close()

    @property
    def pid(self) -> None:
        """Return None: only the owner knows the process id."""

    def _call(self) -> socket.socket:
        path = _address(self._name)
        deadline_s = time.monotonic() + _OWNER_APPEARS_S
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                connect_socket(sock, path)
            except OSError as exc:
                sock.close()
                is_gone = isinstance(exc, ConnectionRefusedError)  # and no engine listens under its name any more
                if is_gone or time.monotonic() > deadline_s:
                    raise ServerError(f"no model tensorrt_llm has the engine {self._name}: {exc}") from exc
            else:
                return sock
            if self._is_closing.wait(_POLL_S):
                raise Unavailable("the engine is being closed", reason="shutdown")


EngineSource = OwnedEngine | SharedEngine  # a maker of connections to an engine that is ready, one at a time


class EngineListener:
    """The owner's listening socket for clients; it stays open while engines come and go."""

    def __init__(self, name: str) -> None:
        """Args: `name` of the engine, by `named_engine`."""
        # In place of an older socket: Triton may load a version anew before it unloads the old instance.
        self._listener = UnixListener(_address(name))

    def fileno(self) -> int:
        """Return the descriptor of the listening socket."""
        return self._listener.socket.fileno()

    def close(self) -> None:
        """Close the socket; waiting clients learn that there is no engine."""
        self._listener.remove()
        self._listener.socket.close()


def _start_of_outer(release: ReleaseSpec) -> EngineStart:
    """Return the start of the process that loads a release's engine on demand, with time to end the inner process."""
    inner_s = start_of_release(release).close_timeout_s
    return EngineStart(close_timeout_s=None if inner_s is None else inner_s + GUARD_S)


def named_engine(prefix: str, version: str) -> str:
    """Return the name of an engine in its server.

    Args:
        prefix: prefix of the names of the engine's Triton models.
        version: version of the models, which is the release.
    """
    return f"{prefix}{version}"


def has_engine(name: str) -> bool:
    """Return whether the models of this engine are loaded, or being loaded."""
    return _address(name).exists()


def _address(name: str) -> Path:
    return run_dir() / f"engine-{name}"


def _python() -> str:
    """Return the interpreter of this environment; inside Triton's stub `sys.executable` is no interpreter."""
    beside = Path(sys.prefix) / "bin" / "python3"
    found = str(beside) if beside.exists() else shutil.which("python3")
    assert found, "no python3 beside the library that runs this"
    return found
