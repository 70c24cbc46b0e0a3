# SPDX-License-Identifier: Apache-2.0
"""The real Envoy with the configuration that `trireme gateway envoy` writes."""

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest
import yaml
from envoy_here import ENVOY
from running_envoy import RunningEnvoy

from trireme.base.free_ports import free_ports
from trireme.commands import run_command


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


class EnvoyOfCommand(RunningEnvoy):
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
        path = written(folder, *addresses, *options)
        text = path.read_text()
        for before, after in (changes or {}).items():
            assert before in text, before
            text = text.replace(before, after)
        path.write_text(text)
        self.clusters = [each["name"] for each in yaml.safe_load(text)["static_resources"]["clusters"]]
        super().__init__(path, self._answers)

    def __enter__(self) -> Self:
        super().__enter__()
        if self._is_all_well:
            self.wait_until(lambda: all(self._is_checked(each) for each in self.clusters))
        return self

    def _answers(self) -> bool:
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
