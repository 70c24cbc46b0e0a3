# SPDX-License-Identifier: Apache-2.0
"""A Redis of a test's own, which the test may stop, kill and start again."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from scripts.unpacked_programs import REDIS

ROOT = Path(__file__).resolve().parents[2]
WHY_NOT = "Redis is not installed: python3 scripts/bootstrap.py --only redis"
PASSWORD = "of-redis"
_WAIT_S = 20.0


def is_redis_here() -> bool:
    """Return whether the server's program is there."""
    return REDIS.is_there(ROOT)


class RedisServer:
    """A server on a free port of the loopback interface, inside a `with`; it wants a password, and keeps nothing.

    Attributes:
        port: its port, also after it was started again.
        url: its address, without the password.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="trireme-redis-"))
        self.port = _port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        program = REDIS.program(ROOT)
        assert program is not None
        libraries = os.pathsep.join(map(str, REDIS.library_folders(ROOT)))
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [program, *options, "--requirepass", PASSWORD, "--dir", str(self._folder)],
                env={"PATH": os.defpath, "LD_LIBRARY_PATH": libraries},
                stdout=log,
                stderr=log,
            )
        deadline_s = time.monotonic() + _WAIT_S
        while not self._answers():
            said = (self._folder / "log").read_text(errors="replace")
            assert self._process.poll() is None, said
            assert time.monotonic() < deadline_s, said
            time.sleep(0.02)

    def kill(self) -> None:
        """End the server at once; what it had is lost."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Let the server take connections, and answer nothing, inside the block."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64).startswith((b"-NOAUTH", b"+PONG"))
        return False


def _port() -> int:
    """Return a free port that no client gets by chance while the server is away."""
    while True:
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
            return int(free.getsockname()[1])
