# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway serve` in a child process, before a server that runs."""

import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from running_server import RunningServer

from trireme.base.free_ports import free_ports

READY_S = 20.0


class GatewayProcess:
    """A gateway that is ready when entered.

    Args:
        server: the server behind it.
        folder: of the gateway's log.
        options: of `trireme gateway serve`.
        url: of a server in place of that one, which may be away; the gateway need be alive alone then.
        deployment: file of the gateway; None: that of the server.
    """

    def __init__(
        self,
        server: RunningServer,
        folder: Path,
        *,
        options: tuple[str, ...] = (),
        url: str | None = None,
        deployment: Path | None = None,
    ) -> None:
        self._server, self._options = server, options
        self._behind, self._probe = url or server.url, "live" if url else "ready"
        self._deployment = deployment or server.folder / "deployment.yaml"
        [self.port] = free_ports(1)
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._log_path = folder / "gateway.log"
        self._is_killed = False

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "trireme", "gateway", "serve", "--deployment", str(self._deployment)]
        self._log = self._log_path.open("ab")
        self.process = subprocess.Popen(
            [*command, "--url", self._behind, "--port", str(self.port), *self._options], stderr=self._log
        )
        deadline_s = time.monotonic() + READY_S
        while not self.is_ready():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        status = self.process.wait(30)
        self._log.close()
        assert status == 0 or self._is_killed, self.log()

    def kill(self) -> None:
        """End the gateway at once."""
        self._is_killed = True
        self.process.kill()
        self.process.wait(30)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/{self._probe}", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")
