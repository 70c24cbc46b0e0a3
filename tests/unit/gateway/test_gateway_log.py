# SPDX-License-Identifier: Apache-2.0
"""The log of `trireme gateway serve`: lines for people, or a JSON object each."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trireme.base.free_ports import free_ports


@pytest.mark.slow
def test_each_line_of_the_log_is_an_object_where_json_is_asked_for(tmp_path: Path) -> None:
    port, *dead = free_ports(3)
    urls = [part for each in dead for part in ("--url", f"127.0.0.1:{each}")]
    command = [sys.executable, "-m", "trireme", "gateway", "serve", "--port", str(port), "--log-format", "json", *urls]
    # A database has nothing to tell of.
    command += ["--ledger", str(tmp_path / "ledger.sqlite"), "--ledger-journal", str(tmp_path / "journal")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as gateway:
        assert gateway.stderr is not None
        lines = [line for line in (gateway.stderr.readline() for _ in range(3)) if line.startswith("{")]
        gateway.terminate()
    logged = [json.loads(line) for line in lines]
    assert [line["logger"] for line in logged] == ["trireme.gateway"] * 2
    assert {line["level"] for line in logged} == {"warning"}
    assert {line["deployment"] for line in logged} == {"demo_cpu"}
    assert all("takes no requests for" in line["message"] for line in logged)
