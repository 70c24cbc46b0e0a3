# SPDX-License-Identifier: Apache-2.0
"""The adapter's end of the engine: it passes requests and reports on, and gets a new engine when the engine dies.

Triton can neither end the streams of a dead stub nor start it again, so code that may crash runs in a process of its
own.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable

from serving.engine_process.engine_messages import Broken, Cancel, Channel, ChannelClosed, Command, Step, Stop, Submit
from serving.engine_process.engine_sources import EngineSource
from serving.engines.seam.base import EngineInfo, GenerationRequest
from trireme.base.errors import Unavailable

_log = logging.getLogger("trireme.engine_client")

_RESTART_DELAYS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)
_READER_ENDS_S = 2.0


class EngineClient:
    """A client with one connection to an engine at a time; the reader's thread calls `on_steps` and `on_death`.

    Args:
        source: makes connections to engines.
        on_steps: called with the reports that have arrived, oldest first; a slow receiver gets several at once.
        on_death: called when the engine has died; every request that was submitted before this call is lost.
    """

    def __init__(
        self,
        source: EngineSource,
        *,
        on_steps: Callable[[list[Step]], None],
        on_death: Callable[[Unavailable], None],
    ) -> None:
        self._source = source
        self._on_steps = on_steps
        self._on_death = on_death
        self._send_lock = threading.Lock()  # one message after the other
        self._is_closing = threading.Event()
        self._channel: Channel | None = None  # None: no engine is ready
        self._broken: Broken | None = None  # the last words of the engine that has just ended
        self._reader: threading.Thread | None = None
        self.info: EngineInfo  # from start() on

    def start(self) -> EngineInfo:
        """Wait until the engine is loaded, and return its description.

        Raises:
            ServerError: the engine could not be loaded; the text is the engine's own.
        """
        self._channel, self.info = self._source.connect()
        self._reader = threading.Thread(target=self._read_forever, name="engine-reader", daemon=True)
        self._reader.start()
        return self.info

    def submit(self, request: GenerationRequest, *, request_id: str = "") -> None:
        """Queue a request.

        Args:
            request: request under a key that is unique here.
            request_id: the request id that the client gave.

        Raises:
            Unavailable: there is no engine right now.
        """
        self._send(Submit(request, request_id))

    def cancel(self, key: int) -> None:
        """Ask for the end of a request, which its last chunk reports as CANCELLED; do nothing without an engine."""
        self._send_if_possible(Cancel(key))

    def stop_elsewhere(self, request_id: str) -> None:
        """Ask for the end of the requests that other adapters of the engine run under a client's request id."""
        self._send_if_possible(Stop(request_id))

    def close(self) -> None:
        """Close the connection; an engine that was started here ends by itself, and is killed if it does not."""
        self._is_closing.set()
        self._source.close()
        self._hang_up()
        if self._reader is not None:
            self._reader.join(
                _READER_ENDS_S
            )  # not for ever: it may be handing on a report to a thread that waits for this call

    @property
    def pid(self) -> int | None:
        """Return the engine's process id; None: it is not known."""
        return self._source.pid

    @property
    def is_up(self) -> bool:
        """Return whether there is an engine; False while a dead engine is being started again."""
        return self._channel is not None

    def _send_if_possible(self, message: Cancel | Stop) -> None:
        try:
            self._send(message)
        except Unavailable:
            _log.debug("no engine for %s", message)

    def _send(self, message: Command) -> None:
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
        watchdog_s = self._source.watchdog_s
        stepped_s = time.monotonic()
        while (channel := self._channel) is not None and not self._is_closing.is_set():
            left_s = None if watchdog_s is None else max(0.0, stepped_s + watchdog_s - time.monotonic())
            try:
                reports = channel.receive(is_blocking=True, timeout_s=left_s)
            except ChannelClosed:
                self._lose(self._death())
                stepped_s = time.monotonic()
                continue
            self._take(reports)
            # A report beside a step comes from a thread of its own, and the engine may hang all the same.
            if watchdog_s is None or any(isinstance(report, Step) and report.stats for report in reports):
                stepped_s = time.monotonic()
            elif time.monotonic() >= stepped_s + watchdog_s:
                text = f"the engine was silent for {watchdog_s:g} s; it is being restarted"
                self._lose(Unavailable(text, reason="engine_hung"), ends_itself=False)
                stepped_s = time.monotonic()
        self._hang_up()  # on an engine that became ready while close() hung up on the one before

    def _lose(self, error: Unavailable, *, ends_itself: bool = True) -> None:
        self._disconnect()  # before `on_death`: a request submitted from now on is refused, not lost
        if not self._is_closing.is_set():
            _log.error("%s", error.message)
            self._on_death(error)
        self._source.discard(ends_itself=ends_itself)
        if not self._is_closing.is_set():
            self._restart()

    def _death(self) -> Unavailable:
        """Return the error for the requests that are lost with the engine."""
        broken, self._broken = self._broken, None
        if broken is not None and broken.reason == "engine_hung":
            return Unavailable("the engine hung: it had work and got no further; it is restarted", reason="engine_hung")
        if broken is None and not self._is_closing.is_set() and (why := self._source.why_ended()):
            _log.error("the engine has ended: %s", why)
        return Unavailable("the engine died; it is being restarted", reason="engine_died")

    def _take(self, reports: list[object]) -> None:
        steps = [report for report in reports if isinstance(report, Step)]
        for report in reports:
            if isinstance(report, Broken):
                self._broken = report
                _log.error("engine: %s", report.error)
        if steps:
            self._on_steps(steps)

    def _restart(self) -> None:
        for attempt in range(sys.maxsize):
            if self._is_closing.wait(_RESTART_DELAYS_S[min(attempt, len(_RESTART_DELAYS_S) - 1)]):
                return
            try:
                self._channel, self.info = self._source.connect()
            except Exception:  # whatever it is, without this thread every request would hang
                if not self._is_closing.is_set():
                    _log.exception("the engine could not be restarted, attempt %d", attempt + 1)
            else:
                _log.info("the engine is back, pid %s", self.pid)
                return

    def _hang_up(self) -> None:
        self._source.discard(ends_itself=self._disconnect())

    def _disconnect(self) -> bool:
        """Close the connection, and return whether there was one."""
        channel = self._channel
        if channel is not None:
            channel.close()  # before the lock is taken: its holder may be waiting for a stuck engine to read
        with self._send_lock:
            if self._channel is channel:
                self._channel = None
        return channel is not None
