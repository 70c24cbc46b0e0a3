# SPDX-License-Identifier: Apache-2.0
"""Where an adapter's engine comes from: a process of its own that it starts (the owner), or the owner's, shared.

One engine serves all models of a release: `tensorrt_llm` owns its process, `ensemble` is a guest of it. The owner
listens on a socket in the server's folder and hands it to each engine process that it starts, so that guests wait in
its queue while an engine is being restarted.
"""

import contextlib
import secrets
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Protocol

from ensemble_configs.errors import ServerError, Unavailable
from serving.engine_messages import Broken, Channel, ChannelClosed, Ready, Report
from serving.engines.base import EngineInfo
from serving.run_dir import run_dir
from serving.server_log import log_format

# After it was hung up on; it may use 5 s (CLOSE_TIMEOUT_S in engine_process) to end what it has started.
_KILL_AFTER_S = 7.0
_POLL_S = 0.02
# How long a guest waits for the owner to exist: Triton loads models in any order, and an owner that loads is there.
_OWNER_APPEARS_S = 60.0


class EngineSource(Protocol):
    """Makes connections to an engine that is ready, one at a time.

    Attributes:
        watchdog_s: an engine that says nothing for so long is hung, and is ended; None: that is for its owner to see.
    """

    watchdog_s: float | None

    def connect(self) -> tuple[Channel, EngineInfo]:
        """Wait until an engine is loaded.

        Raises:
            ServerError: it could not be loaded; the text is the engine's own.
        """

    def discard(self, *, ends_itself: bool) -> None:
        """The connection is closed; end what is behind it. `ends_itself`: it served, and will see the hang-up."""

    def close(self) -> None:
        """No connection is made from now on."""

    @property
    def pid(self) -> int | None:
        """The engine's process id, where it is known."""


class OwnedEngine(EngineSource):
    """An engine process that is started here, and ended.

    Args:
        release_dir: the version folder whose release.json names the engine.
        listener: where guests of the engine come in.
        watchdog_s: must be longer than the engine's longest step, and than a heartbeat of its process.
        is_inner: the engine's process itself starts it, for an engine that is loaded on demand.
    """

    def __init__(
        self,
        release_dir: Path,
        listener: "EngineListener | None" = None,
        *,
        watchdog_s: float | None = None,
        is_inner: bool = False,
    ) -> None:
        self._is_inner = is_inner
        self.watchdog_s = watchdog_s
        self._release_dir = release_dir
        self._listener = listener
        self._lock = threading.Lock()  # no process is started behind close()
        self._is_closing = False
        self._process: subprocess.Popen[bytes] | None = None

    def connect(self) -> tuple[Channel, EngineInfo]:
        """Start a process and wait until it has loaded the engine."""
        ours, theirs = socket.socketpair()
        channel = Channel(ours, Report)
        try:
            with theirs:
                process = self._start(theirs.fileno())
            return channel, _wait_until_loaded(process, channel)
        except BaseException:
            channel.close()
            raise

    def discard(self, *, ends_itself: bool) -> None:
        """Wait for the end of a process that was hung up on, and kill it if it does not come."""
        process = self._process
        if process is not None:
            try:
                process.wait(_KILL_AFTER_S if ends_itself else 0)  # one that is still loading sees no hang-up
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Start no process any more."""
        with self._lock:
            self._is_closing = True
        if self._listener is not None:
            self._listener.close()

    @property
    def pid(self) -> int | None:
        """The engine's process id."""
        return self._process.pid if self._process else None

    def _start(self, socket_number: int) -> subprocess.Popen[bytes]:
        numbers = [socket_number]
        command = [_python(), "-m", "serving.engine_process", "--release", self._release_dir, "--fd", socket_number]
        command += ["--run-dir", run_dir()]  # an engine's process, asked itself, would find another
        command += ["--log-format", log_format()]
        if self._is_inner:
            command.append("--inner")
        if self._listener is not None:
            numbers.append(self._listener.fileno())
            command += ["--guests-fd", self._listener.fileno()]
        with self._lock:
            if self._is_closing:
                raise Unavailable("the engine is being closed", reason="shutdown")
            self._process = subprocess.Popen([str(part) for part in command], pass_fds=numbers)
            return self._process


class SharedEngine(EngineSource):
    """A guest's way to the engine that another model of the same release owns."""

    def __init__(self, name: str) -> None:
        """Args: `name` of the engine, by `named_engine`."""
        self.watchdog_s = None
        self._name = name
        self._is_closing = threading.Event()
        self._waiting: Channel | None = None

    def connect(self) -> tuple[Channel, EngineInfo]:
        """Wait for the owner, then for its engine."""
        channel = self._waiting = Channel(self._call(), Report)
        if self._is_closing.is_set():  # perhaps before it could see this channel
            channel.close()
            raise Unavailable("the engine is being closed", reason="shutdown")
        try:
            return channel, _read_info(channel)
        except ChannelClosed as exc:
            channel.close()
            raise ServerError("the engine that tensorrt_llm loads ended while loading; its log says why") from exc
        except BaseException:
            channel.close()
            raise
        finally:
            self._waiting = None

    def discard(self, *, ends_itself: bool) -> None:
        """Nothing is behind the connection that is ours."""

    def close(self) -> None:
        """Call nobody any more, and wait for nobody."""
        self._is_closing.set()
        waiting = self._waiting
        if waiting is not None:
            waiting.close()

    @property
    def pid(self) -> None:
        """Known to the owner."""

    def _call(self) -> socket.socket:
        path = _address(self._name)
        deadline_s = time.monotonic() + _OWNER_APPEARS_S
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(path))
            except OSError as exc:
                sock.close()
                is_gone = isinstance(exc, ConnectionRefusedError)  # and nobody answers to its name any more
                if is_gone or time.monotonic() > deadline_s:
                    raise ServerError(f"no model tensorrt_llm has the engine {self._name}: {exc}") from exc
            else:
                return sock
            if self._is_closing.wait(_POLL_S):
                raise Unavailable("the engine is being closed", reason="shutdown")


class EngineListener:
    """The owner's door for guests; open as long as the owner is there, whatever becomes of its engine."""

    def __init__(self, name: str) -> None:
        """Args: `name` of the engine, by `named_engine`."""
        self._path = _address(name)
        own = self._path.with_suffix(f".{secrets.token_hex(4)}")
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(own))
        self._socket.listen()
        self._inode = own.stat().st_ino
        # In place of an older one's: Triton may load a version anew before it unloads the old instance.
        own.rename(self._path)

    def fileno(self) -> int:
        """Of the listening socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Guests that wait are told that there is no engine."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:
                self._path.unlink()
        self._socket.close()


def named_engine(prefix: str, version: str) -> str:
    """What an engine is called among those of its server.

    Args:
        prefix: before the names of its Triton models.
        version: of the models, which is the release.
    """
    return f"{prefix}{version}"


def has_engine(name: str) -> bool:
    """Whether the models of this engine are loaded, or being loaded."""
    return _address(name).exists()


def _address(name: str) -> Path:
    return run_dir() / f"engine-{name}"


def _wait_until_loaded(process: subprocess.Popen[bytes], channel: Channel) -> EngineInfo:
    """Raises: ServerError: it was not loaded, and its process has ended."""
    try:
        return _read_info(channel)
    except ChannelClosed as exc:
        status = process.wait()
        raise ServerError(f"the engine process ended with status {status} while loading; its log says why") from exc
    except ServerError:
        process.wait()
        raise


def _read_info(channel: Channel) -> EngineInfo:
    report = channel.receive_one()  # with Ready may come what the first step said
    if isinstance(report, Broken):
        raise ServerError(f"the engine could not be loaded: {report.error}")
    assert isinstance(report, Ready), report
    return report.info


def _python() -> str:
    """The interpreter of this environment; inside Triton's stub `sys.executable` is not one."""
    beside = Path(sys.prefix) / "bin" / "python3"
    found = str(beside) if beside.exists() else shutil.which("python3")
    assert found, "no python3 beside the library that runs this"
    return found
