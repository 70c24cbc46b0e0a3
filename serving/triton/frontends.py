# SPDX-License-Identifier: Apache-2.0
"""The frontends of a server: two processes that clients reach in place of Triton, for as long as `trireme serve` runs.

The listening sockets are held here. Triton comes and goes behind them, and a frontend that dies or hangs is started
again while connections wait.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from ensemble_configs.spec.triton_spec import TritonSpec
from serving.doctor.preflight import bound_socket
from serving.frontend.common.messages import BACKLOG, Down, FrontendMessage, Ping, Refuse, Setting, Upstream
from serving.process.returned_memory import with_returned_memory
from serving.process.server_log import log_format
from trireme.base.errors import Unavailable
from trireme.base.project_files import CODE_ROOT

_PING_S = 1.0
_MAX_BACKOFF_S = 10.0
_END_S = 2.0
_START_S = 30.0  # to import what it needs, on a busy machine


class Frontends:
    """The frontends, entered before Triton is started; `serve` tells them its ports.

    Args:
        triton: ports, certificates and limits.
        tell: takes progress for a person.
    """

    def __init__(self, triton: TritonSpec, tell: Callable[[str], None]) -> None:
        self._triton = triton
        self._tell = tell
        names = ("http_port", "metrics_port", "grpc_port")
        self._listeners = {name: bound_socket(triton, name, backlog=BACKLOG) for name in names}
        self._is_closed = threading.Event()
        self._lock = threading.Lock()  # of messages, so that a frontend which is started again hears them in order
        self._upstream: Upstream | Down = Down()
        self._refusal: Refuse | None = None
        self._frontends = {
            "grpc": self._start("grpc", {"grpc": "grpc_port"}),
            "http": self._start("http", {"http": "http_port", "metrics": "metrics_port"}),
        }
        self._watch = threading.Thread(target=self._watch_all, name="frontends", daemon=True)
        self._watch.start()

    def serve(self, upstream: Upstream) -> None:
        """Pass requests on to a Triton that has been started."""
        with self._lock:
            self._upstream = upstream
            self._tell_all(upstream)

    def down(self) -> None:
        """Record that Triton has ended."""
        with self._lock:
            self._upstream = Down()
            self._tell_all(Down())

    def refuse(self, because: Unavailable) -> None:
        """Refuse every request of a model from now on."""
        with self._lock:
            self._refusal = Refuse(because.message, str(because.facts.get("reason", "")))
            self._tell_all(self._refusal)

    def close(self) -> None:
        """End the frontends and their connections."""
        self._is_closed.set()
        self._watch.join()
        for frontend in self._frontends.values():
            frontend.hang_up()
        for frontend in self._frontends.values():
            frontend.end()
        for listener in self._listeners.values():
            listener.close()

    def _start(self, kind: Literal["grpc", "http"], ports: dict[str, str]) -> "_Frontend":
        tls = self._triton.grpc_tls if kind == "grpc" else None
        descriptors = {name: self._listeners[port].fileno() for name, port in ports.items()}
        setting = Setting(
            kind=kind,
            listeners=descriptors,
            max_request_bytes=self._triton.max_request_bytes,
            max_connections=self._triton.max_connections,
            cert_file=None if tls is None else str(tls.cert_file),
            key_file=None if tls is None else str(tls.key_file),
            client_ca_file=None if tls is None or tls.client_ca_file is None else str(tls.client_ca_file),
            log_format=log_format(),
        )
        return _Frontend(setting, lambda: self._start(kind, ports))

    def _tell_all(self, word: FrontendMessage) -> None:
        for frontend in self._frontends.values():
            frontend.tell(word)

    def _watch_all(self) -> None:
        num_failed = dict.fromkeys(self._frontends, 0)
        while not self._is_closed.wait(_PING_S):
            for kind, frontend in self._frontends.items():
                why = frontend.failure(self._triton.hang_timeout_s)
                if why is None:
                    num_failed[kind] = 0
                    continue
                num_failed[kind] += 1
                delay_s = min(2.0 ** (num_failed[kind] - 2), _MAX_BACKOFF_S) if num_failed[kind] > 1 else 0.0
                self._tell(f"the {kind} frontend {why}; starting it again" + (f" in {delay_s:g} s" if delay_s else ""))
                frontend.end()
                if self._is_closed.wait(delay_s):
                    return
                with self._lock:
                    self._frontends[kind] = frontend.again()
                    self._frontends[kind].tell(self._upstream)
                    if self._refusal is not None:
                        self._frontends[kind].tell(self._refusal)


class _Frontend:
    def __init__(self, setting: Setting, again: Callable[[], "_Frontend"]) -> None:
        self.again = again
        self._channel, its_end = socket.socketpair()
        self._channel.setblocking(False)
        self._asked_s: float | None = None  # when the question was sent that it has not answered
        self._has_answered = False
        with its_end:
            self.process = subprocess.Popen(
                [
                    *[sys.executable, "-m", "serving.frontend.process"],
                    *[msgspec.json.encode(setting).decode(), str(its_end.fileno())],
                ],
                cwd=CODE_ROOT,
                env=with_returned_memory(os.environ),
                stdin=subprocess.DEVNULL,
                pass_fds=[its_end.fileno(), *setting.listeners.values()],
                process_group=0,  # Ctrl-C reaches the parent alone
            )

    def tell(self, word: FrontendMessage) -> None:
        with contextlib.suppress(OSError):  # it is dead or hangs, and the watch sees to that
            self._channel.sendall(msgspec.json.encode(word) + b"\n")

    def failure(self, hang_timeout_s: float) -> str | None:
        """Return what is wrong with the frontend, if anything, and ask whether it lives."""
        if (status := self.process.poll()) is not None:
            return f"ended with status {status}"
        with contextlib.suppress(BlockingIOError):
            while self._channel.recv(65_536):
                self._asked_s = None
                self._has_answered = True
        patience_s = hang_timeout_s if self._has_answered else max(hang_timeout_s, _START_S)
        if self._asked_s is None:
            self._asked_s = time.monotonic()
            self.tell(Ping())
        elif time.monotonic() - self._asked_s > patience_s:
            return f"has been silent for {patience_s:g} s"
        return None

    def hang_up(self) -> None:
        self._channel.close()

    def end(self) -> None:
        """End the frontend; return when its process is gone."""
        self.hang_up()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_S)
            return
        self.process.kill()
        self.process.wait()


def private_ports() -> tuple[int, int, int]:
    """Return three ports of the loopback interface that are free now."""
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        for listener in (first, second, third):
            listener.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1], third.getsockname()[1]
