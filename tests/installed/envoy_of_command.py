# SPDX-License-Identifier: Apache-2.0
"""The real Envoy with the configuration that `trireme gateway envoy` writes."""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from envoy_here import ENVOY

from trireme.base.free_ports import free_ports
from trireme.commands import run_command

_START_S = 30.0


def written(folder: Path, *options: str) -> Path:
    """Return the file that the command writes, once Envoy itself has found nothing to say about it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "envoy.yaml"
    with pytest.raises(SystemExit) as ended:
        run_command("gateway", ["envoy", *options, "--out", str(path)])
    assert not ended.value.code, "the command refuses its options"
    command = [str(ENVOY), "--mode", "validate", "-c", str(path), "--log-level", "warn"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return path


class EnvoyOfCommand:
    """An Envoy that runs inside a `with`, and knows then which backends are well.

    Args:
        options: of the command, without its addresses and `--out`.
        changes: parts of the configuration to replace, by text.
        is_all_well: whether each backend gets requests before the block begins.

    Attributes:
        url: for callers of gateways. server_url: for callers of Tritons.
    """

    def __init__(
        self, folder: Path, *options: str, changes: dict[str, str] | None = None, is_all_well: bool = True
    ) -> None:
        self._is_all_well = is_all_well
        self.port, self.server_port, self.admin_port = free_ports(3)
        self.url, self.server_url = f"127.0.0.1:{self.port}", f"127.0.0.1:{self.server_port}"
        self.access_log = folder / "access.log"
        addresses = [
            *["--listen", self.url, "--server-listen", self.server_url, "--admin", f"127.0.0.1:{self.admin_port}"],
            *["--access-log", str(self.access_log)],
        ]
        self._path = written(folder, *addresses, *options)
        text = self._path.read_text()
        for before, after in (changes or {}).items():
            assert before in text, before
            text = text.replace(before, after)
        self._path.write_text(text)
        self.clusters = [each["name"] for each in yaml.safe_load(text)["static_resources"]["clusters"]]
        self._log = folder / "envoy.log"

    def __enter__(self) -> Self:
        command = [str(ENVOY), "-c", str(self._path), "--concurrency", "1", "--disable-hot-restart"]
        with self._log.open("w") as file:
            self._process = subprocess.Popen([*command, "--log-level", "warn"], stdout=file, stderr=file)
        self._until(self._is_ready)
        if self._is_all_well:
            self._until(lambda: all(self._is_checked(each) for each in self.clusters))
        return self

    def __exit__(self, *_: object) -> None:
        is_alive = self._process.poll() is None
        self._process.terminate()
        self._process.wait(20)
        assert is_alive, self.log()

    def _until(self, is_so: Any) -> None:
        end_s = time.monotonic() + _START_S
        while not is_so():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < end_s, self.log()
            time.sleep(0.05)

    def log(self) -> str:
        return self._log.read_text()

    def _is_ready(self) -> bool:
        try:
            return bool(self.ask("ready"))
        except OSError:
            return False

    def _is_checked(self, cluster: str) -> bool:
        return self.statistic(f"cluster.{cluster}.health_check.attempt") > 0 and not any(
            "failed_active_hc" in flags for flags in self.flags(cluster).values()
        )

    def flags(self, cluster: str) -> dict[str, str]:
        """Return the health flags of each backend, by its address; `healthy` where it gets requests."""
        lines = [line.split("::") for line in self.ask("clusters").decode().splitlines()]
        return {line[1]: line[3] for line in lines if line[0] == cluster and line[2:3] == ["health_flags"]}

    def statistic(self, name: str) -> int:
        """Return the sum of Envoy's counters that a pattern names."""
        found = json.loads(self.ask(f"stats?format=json&filter=^{name}$"))["stats"]
        return sum(int(each["value"]) for each in found)

    def ask(self, path: str) -> bytes:
        """Return an answer of the admin interface."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/{path}", timeout=10) as answer:
            data: bytes = answer.read()
            return data

    def entries(self) -> list[dict[str, Any]]:
        """Return the log of requests so far; Envoy writes it now and then, and when asked."""
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self.admin_port}/reopen_logs", method="POST"), timeout=10
        ).close()
        return [json.loads(line) for line in self.access_log.read_text().splitlines()]
