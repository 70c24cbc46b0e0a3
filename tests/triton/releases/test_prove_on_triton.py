# SPDX-License-Identifier: Apache-2.0
"""The last step of `trireme prove`: the whole server under a steady load, on a stand-in of TensorRT-LLM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_container import write_gpu_container

pytestmark = pytest.mark.triton


def test_the_server_is_measured_as_the_engine_is(tmp_path: Path) -> None:
    container = write_gpu_container(tmp_path / "container")
    options = ["--isl", "16", "--osl", "8", "--concurrency", "1,3", "--timeout-s", "200", "--json"]
    command = [sys.executable, "-m", "trireme", "prove", "--steps", "bench,serve", "--out", str(tmp_path / "out")]
    result = subprocess.run(
        [*command, *options], env=container.environment(), capture_output=True, text=True, check=False, timeout=280
    )
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert [(step["name"], step["status"]) for step in document["steps"]] == [
        ("bench tensorrt", "left out"), ("bench pytorch", "passed"),
        ("serve tensorrt", "left out"), ("serve pytorch", "passed"),
    ]  # fmt: skip
    rows = {(row["path"], row["concurrency"]): row for row in document["bench"]}
    assert set(rows) == {("engine", 1), ("engine", 3), ("server", 1), ("server", 3)}
    for clients in (1, 3):
        assert rows["server", clients]["num_requests"] == 16
        assert rows["server", clients]["measured"]["ttft_ms"] > rows["engine", clients]["measured"]["ttft_ms"]
