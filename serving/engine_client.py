# SPDX-License-Identifier: Apache-2.0
"""The adapter's end of the engine: starts its process, passes requests and reports on, starts it again when it dies.

Triton can neither end the streams of a dead stub nor start it again, so what may crash runs in a child of the stub.
"""

import logging
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from ensemble_configs.errors import ServerError, Unavailable
from serving.engine_messages import Broken, Cancel, Channel, ChannelClosed, Ready, Report, Step, Submit
from serving.engines.base import EngineInfo, GenerationRequest

_log = logging.getLogger("trireme.engine_client")

_RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_KILL_AFTER_S = 2.0


class EngineClient:
    """One engine process at a time. `on_steps` and `on_death` are called on one thread, the reader's.

    Args:
        release_dir: the version folder whose release.json names the engine.
        on_steps: every report that has arrived, oldest first; a slow receiver gets several at once.
        on_death: the engine died; every request that was submitted before this call is lost.
    """

    def __init__(
        self,
        release_dir: Path,
        *,
        on_steps: Callable[[list[Step]], None],
        on_death: Callable[[Unavailable], None],
    ) -> None:
        self._release_dir = release_dir
        self._on_steps = on_steps
        self._on_death = on_death
        self._send_lock = threading.Lock()  # one message after the other
        self._start_lock = threading.Lock()  # no process is started behind close()
        self._is_closing = threading.Event()
        self._channel: Channel | None = None  # None: no engine is ready
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.info: EngineInfo  # from start() on

    def start(self) -> EngineInfo:
        """Start the engine and wait until it is loaded.

        Raises:
            ServerError: it could not be loaded; the text is the engine's own.
        """
        self._spawn()
        self._reader = threading.Thread(target=self._read_forever, name="engine-reader", daemon=True)
        self._reader.start()
        return self.info

    def submit(self, request: GenerationRequest) -> None:
        """Raises: Unavailable: there is no engine right now."""
        self._send(Submit(request))

    def cancel(self, key: int) -> None:
        """Ask for the end of a request; its last chunk says CANCELLED. Nothing happens where there is no engine."""
        try:
            self._send(Cancel(key))
        except Unavailable:
            _log.debug("no engine to cancel %d in", key)

    def close(self) -> None:
        """Hang up; the engine ends by itself, and is killed if it does not."""
        with self._start_lock:
            self._is_closing.set()
        self._hang_up()
        if self._reader is not None:
            self._reader.join(_KILL_AFTER_S)  # not for ever: it may be handing on a report to somebody who waits for us

    @property
    def pid(self) -> int | None:
        """The engine's process id."""
        return self._process.pid if self._process else None

    def _spawn(self) -> None:
        ours, theirs = socket.socketpair()
        channel = Channel(ours, Report)
        try:
            with theirs:
                process = self._start_process(theirs.fileno())
            self.info = _wait_until_loaded(process, channel)
        except BaseException:
            channel.close()
            raise
        self._channel = channel

    def _start_process(self, socket_number: int) -> subprocess.Popen[bytes]:
        command = [_python(), "-m", "serving.engine_process", "--release", self._release_dir, "--fd", socket_number]
        with self._start_lock:
            if self._is_closing.is_set():
                raise Unavailable("the engine is being closed", reason="shutdown")
            self._process = subprocess.Popen([str(part) for part in command], pass_fds=[socket_number])
            return self._process

    def _send(self, message: Submit | Cancel) -> None:
        with self._send_lock:
            if self._channel is None:
                raise Unavailable("the engine is being restarted; try again", reason="engine_restarting")
            try:
                self._channel.send(message)
            except ChannelClosed as exc:
                raise Unavailable(
                    "the engine has died and is being restarted; try again", reason="engine_died"
                ) from exc

    def _read_forever(self) -> None:
        while (channel := self._channel) is not None and not self._is_closing.is_set():
            try:
                self._take(channel.receive(is_blocking=True))
            except ChannelClosed:
                self._hang_up()
                if not self._is_closing.is_set():
                    self._on_death(Unavailable("the engine died; it is being restarted", reason="engine_died"))
                    self._restart()
        self._hang_up()  # on an engine that became ready while close() hung up on the one before

    def _take(self, reports: list[object]) -> None:
        steps = [report for report in reports if isinstance(report, Step)]
        for report in reports:
            if isinstance(report, Broken):
                _log.error("engine: %s", report.error)
        if steps:
            self._on_steps(steps)

    def _restart(self) -> None:
        for attempt in range(sys.maxsize):
            if self._is_closing.wait(_RESTART_DELAYS_S[min(attempt, len(_RESTART_DELAYS_S) - 1)]):
                return
            try:
                self._spawn()
            except (ServerError, OSError):
                if not self._is_closing.is_set():
                    _log.exception("the engine could not be restarted, attempt %d", attempt + 1)
            else:
                _log.info("the engine has been restarted, pid %s", self.pid)
                return

    def _hang_up(self) -> None:
        channel = self._channel
        if channel is not None:
            channel.close()  # before the lock is taken: its holder may be waiting for a stuck engine to read
        with self._send_lock:
            if self._channel is channel:
                self._channel = None
        process = self._process
        if process is not None:
            try:
                process.wait(0 if channel is None else _KILL_AFTER_S)  # one that is still loading sees no hang-up
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_until_loaded(process: subprocess.Popen[bytes], channel: Channel) -> EngineInfo:
    """Raises: ServerError: it was not loaded, and its process has ended."""
    try:
        [report] = channel.receive(is_blocking=True)
    except ChannelClosed as exc:
        status = process.wait()
        raise ServerError(f"the engine process ended with status {status} while loading; its log says why") from exc
    if isinstance(report, Broken):
        process.wait()
        raise ServerError(f"the engine could not be loaded: {report.error}")
    assert isinstance(report, Ready), report
    return report.info


def _python() -> str:
    """The interpreter of this environment; inside Triton's stub `sys.executable` is not one."""
    beside = Path(sys.prefix) / "bin" / "python3"
    found = str(beside) if beside.exists() else shutil.which("python3")
    assert found, "no python3 beside the library that runs this"
    return found
