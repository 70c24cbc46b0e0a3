# SPDX-License-Identifier: Apache-2.0
"""Our side: `trireme serve`, asked over gRPC."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from benchmarks.peers import model_files
from benchmarks.peers.peer import AskedServer, Bits, Started
from benchmarks.support.report import triton_version
from benchmarks.support.through_ensemble import ThroughEnsemble
from clients.load_run.run_folder import package_version

NAMES: dict[Bits, str] = {8: "trireme int8", 16: "trireme bf16"}


class Ensemble:
    """Triton, the ensemble's adapters and OpenVINO GenAI in its process."""

    beside: str | None = None

    def __init__(self, bits: Bits) -> None:
        self.name = NAMES[bits]
        self.precision = weights(bits)
        self._bits: Bits = bits
        self.needs: tuple[Path, ...] = (model_files.CHECKPOINT, model_files.OPENVINO[bits])

    @contextlib.contextmanager
    def started(self) -> Iterator[Started]:
        """Yield `trireme serve` with the deployment of `make bench`."""
        spec = model_files.deployment(self._bits)
        with ThroughEnsemble(spec) as server:
            triton = f"Triton {triton_version(server.http)}"
            yield AskedServer(
                server.url,
                "ensemble",
                version=f"trireme {package_version('trireme')}, {openvino_version()}, {triton}",
                settings=f"trireme serve --deployment benchmarks/random_model/{model_files.MODEL}.yaml"
                + ("" if self._bits == 8 else f" (engine.dir: {model_files.OPENVINO[16].name})"),
                cpu_s=server.cpu_s,
            )


def weights(bits: Bits) -> str:
    """Return the number format of the weights in words."""
    return "weights int8 by channel, asymmetric" if bits == 8 else "weights bf16, arithmetic bf16"


def openvino_version() -> str:
    """Return the version of the engine."""
    return f"OpenVINO GenAI {package_version('openvino-genai')}"
