# SPDX-License-Identifier: Apache-2.0
"""A `tritonserver` with models of a few lines and nothing of ours but the way to start it."""

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from serving.process.installation import find_triton
from trireme.base.free_ports import free_ports

READY_S = 60.0


def write_model(repository: Path, name: str, *, config: str, code: str) -> None:
    """Write a Python model with one instance on the CPU."""
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(f'name: "{name}" backend: "python"\n{config}')
    (folder / "model.py").write_text(code)


class PlainTriton:
    """A server that runs while it is entered, and is ready then.

    With `is_failing` it has ended by itself.

    Args:
        env: more of it, for models.
    """

    def __init__(
        self,
        repository: Path,
        folder: Path,
        *,
        options: tuple[str, ...] = (),
        env: Mapping[str, str] | None = None,
        is_failing: bool = False,
    ) -> None:
        self.http_port, self.grpc_port, metrics_port = free_ports(3)
        self.url = f"127.0.0.1:{self.grpc_port}"
        installed = find_triton()
        ports = [f"--{name}-port={port}" for name, port in
                 (("http", self.http_port), ("grpc", self.grpc_port), ("metrics", metrics_port))]  # fmt: skip
        if installed.backend_directory is not None:
            ports.append(f"--backend-directory={installed.backend_directory}")
        self._command = [
            str(installed.tritonserver),
            f"--model-repository={repository}",
            "--exit-timeout-secs=5",
            *ports,
            *options,
        ]
        self._env = installed.environment(run_dir_variable="TRIREME_UNUSED", run_dir=folder) | dict(env or {})
        self._log_path = folder / "triton.log"
        self._is_failing = is_failing

    def __enter__(self) -> Self:
        with self._log_path.open("wb") as log:
            self.process = subprocess.Popen(self._command, env=self._env, stdout=log, stderr=log)
        try:
            self._wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while not self._is_ready():
            has_ended = self.process.poll() is not None
            if has_ended and self._is_failing:
                return
            assert not has_ended, self.log()
            assert time.monotonic() < deadline_s, self.log()
            time.sleep(0.05)
        assert not self._is_failing, f"it loaded\n{self.log()}"

    def __exit__(self, *_: object) -> None:
        self.process.terminate()  # it removes its shared memory itself
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log(self) -> str:
        return self._log_path.read_text(errors="replace")

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/v2/health/ready", timeout=5) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
