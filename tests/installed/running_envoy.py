# SPDX-License-Identifier: Apache-2.0
"""The process of a real Envoy, which runs inside a `with` and must still run at its end."""

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from envoy_here import ENVOY

_START_S = 30.0


class RunningEnvoy:
    """An Envoy with a configuration; what it says is in `envoy.log` of its folder.

    Args:
        config: its file, which is read when the block begins.
        is_ready: asked until it is so, before the block goes on.
    """

    def __init__(self, config: Path, is_ready: Callable[[], bool]) -> None:
        self._config, self._is_ready = config, is_ready
        self._log = config.with_name("envoy.log")

    def __enter__(self) -> Self:
        command = [str(ENVOY), "-c", str(self._config), "--concurrency", "1", "--disable-hot-restart"]
        with self._log.open("w") as file:
            self._process = subprocess.Popen([*command, "--log-level", "warn"], stdout=file, stderr=file)
        self.wait_until(self._is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        is_alive = self._process.poll() is None
        self._process.terminate()
        self._process.wait(20)
        assert is_alive, self.log()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, as long as Envoy runs."""
        end_s = time.monotonic() + _START_S
        while not is_so():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end_s, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        """Return what Envoy has said."""
        return self._log.read_text()
