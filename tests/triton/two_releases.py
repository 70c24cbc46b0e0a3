# SPDX-License-Identifier: Apache-2.0
"""A server that holds two releases, whose engines answer differently."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from running_server import READY_S, deployment_text

from benchmarks.free_ports import free_ports
from ensemble_configs.deployment import load_deployment, override_triton
from ensemble_configs.repository import write_repository
from serving.server.installation import find_triton
from serving.server.triton_process import TritonProcess


@contextmanager
def two_releases(folder: Path) -> Iterator[tuple[TritonProcess, int, int]]:
    """The server and its gRPC and HTTP ports. Unpinned requests go to release 2."""
    repository = folder / "model_repository"
    http_port, grpc_port, metrics_port = free_ports(3)
    for release in (1, 2):
        file = folder / f"release_{release}.yaml"
        engine = {"provider": "simulated", "step_ms": 5.0, "seed": release}
        file.write_text(deployment_text("two", engine=engine, release=release))
        spec = load_deployment(file)
        write_repository(spec, root=repository, source="test")
    for config in repository.glob("*/config.pbtxt"):
        config.write_text(config.read_text() + "version_policy { all {} }\n")
    triton = override_triton(spec, http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port).triton
    with (folder / "triton.log").open("wb") as log:
        server = TritonProcess(triton, repository, find_triton(), log)
        try:
            deadline_s = time.monotonic() + READY_S
            while not server.is_ready():
                text = (folder / "triton.log").read_text(errors="replace")
                assert server.exit_status is None, text
                assert time.monotonic() < deadline_s, text
                time.sleep(0.05)
            yield server, grpc_port, http_port
        finally:
            server.kill()
            server.clean_up()
