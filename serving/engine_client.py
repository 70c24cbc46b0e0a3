# SPDX-License-Identifier: Apache-2.0
"""The adapter's end of the engine: starts its process, hands requests over, hands its reports on, restarts it when it dies.

Triton can neither end the streams of a dead stub nor start it again, so what may crash runs in a child of the stub.
"""

import logging
import shutil
import socket
import subprocess
import sys
import threading
import time
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
        self._send_lock = threading.Lock()
        self._is_closing = False
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> EngineInfo:
        """Start the engine and wait until it is loaded.

        Raises:
            ServerError: it could not be loaded; the text is the engine's own.
        """
        info = self._spawn()
        threading.Thread(target=self._read_forever, name="engine-reader", daemon=True).start()
        return info

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
        self._is_closing = True
        self._hang_up()

    @property
    def pid(self) -> int | None:
        """The engine's process id."""
        return self._process.pid if self._process else None

    def _spawn(self) -> EngineInfo:
        ours, theirs = socket.socketpair()
        command = [_python(), "-m", "serving.engine_process", "--release", self._release_dir, "--fd", theirs.fileno()]
        with theirs:
            self._process = subprocess.Popen([str(part) for part in command], pass_fds=[theirs.fileno()])
        channel = Channel(ours, Report)
        try:
            [report] = channel.receive(is_blocking=True)
        except ChannelClosed as exc:
            status = self._process.wait()
            raise ServerError(f"the engine process ended with status {status} while loading; its log says why") from exc
        if isinstance(report, Broken):
            self._process.wait()
            raise ServerError(f"the engine could not be loaded: {report.error}")
        assert isinstance(report, Ready), report
        self._channel = channel
        return report.info

    def _send(self, message: Submit | Cancel) -> None:
        with self._send_lock:
            if self._channel is None:
                raise Unavailable("the engine is being restarted; try again", reason="engine_restarting")
            try:
                self._channel.send(message)
            except ChannelClosed as exc:
                raise Unavailable("the engine has died and is being restarted; try again", reason="engine_died") from exc

    def _read_forever(self) -> None:
        while not self._is_closing:
            assert self._channel is not None
            try:
                self._take(self._channel.receive(is_blocking=True))
            except ChannelClosed:
                self._hang_up()
                if not self._is_closing:
                    self._on_death(Unavailable("the engine died; it is being restarted", reason="engine_died"))
                    self._restart()

    def _take(self, reports: list[object]) -> None:
        steps = [report for report in reports if isinstance(report, Step)]
        for report in reports:
            if isinstance(report, Broken):
                _log.error("engine: %s", report.error)
        if steps:
            self._on_steps(steps)

    def _restart(self) -> None:
        for attempt in range(sys.maxsize):
            time.sleep(_RESTART_DELAYS_S[min(attempt, len(_RESTART_DELAYS_S) - 1)])
            if self._is_closing:
                return
            try:
                self._spawn()
            except (ServerError, OSError):
                _log.exception("the engine could not be restarted, attempt %d", attempt + 1)
            else:
                _log.info("the engine has been restarted, pid %s", self.pid)
                return

    def _hang_up(self) -> None:
        with self._send_lock:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
        if self._process is not None:
            try:
                self._process.wait(_KILL_AFTER_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


def _python() -> str:
    """The interpreter of this environment; inside Triton's stub `sys.executable` is not one."""
    beside = Path(sys.prefix) / "bin" / "python3"
    found = str(beside) if beside.exists() else shutil.which("python3")
    assert found, "no python3 beside the library that runs this"
    return found
