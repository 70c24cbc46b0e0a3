# SPDX-License-Identifier: Apache-2.0
"""Two servers of one deployment's name: the second is refused and takes nothing from the first."""

import os
import subprocess
import sys
from pathlib import Path

from running_server import RunningServer, deployment_text

from clients.server_control import ServerControl
from trireme.base.free_ports import free_ports

DEPLOYMENT = deployment_text("twice", engine={"provider": "simulated", "max_seq_len": 64, "num_kv_blocks": 8})


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_server_takes_nothing_from_the_first_and_a_killed_one_refuses_nobody(tmp_path: Path) -> None:
    with RunningServer(DEPLOYMENT, tmp_path) as server:
        repository = contents(tmp_path / "build/twice/model_repository")
        ports = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), free_ports(3), strict=True)]
        second = subprocess.run(
            [sys.executable, "-m", "trireme", "serve", "--deployment", "deployment.yaml", *ports],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert second.returncode == 2
        assert f"already, by process {server.process.pid} (gRPC on {server.url})" in second.stderr
        assert contents(tmp_path / "build/twice/model_repository") == repository
        status = ServerControl(tmp_path / "build/twice/control.sock").ask("status")
        assert (status["pid"], status["is_ready"]) == (server.process.pid, True)

        triton = server.tritonserver()
        os.kill(server.process.pid, 9)
        server.process.wait(10)
        triton.wait(30)
    with RunningServer(DEPLOYMENT, tmp_path) as server:
        status = ServerControl(tmp_path / "build/twice/control.sock").ask("status")
        assert status["pid"] == server.process.pid
        assert server.stop() == 0
