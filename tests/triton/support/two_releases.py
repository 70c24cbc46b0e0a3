# SPDX-License-Identifier: Apache-2.0
"""A server that holds two releases, whose engines answer differently."""

from pathlib import Path

from running_server import ENDPOINTS, RunningServer, deployment_text

TOKENIZER = {"dir": str(Path(__file__).resolve().parents[3] / "examples/demo_model/target")}


def two_releases(folder: Path) -> RunningServer:
    """Return the server; a request that names no release gets release 2."""
    engine = {"provider": "simulated", "step_ms": 5.0}
    older = {"release": 1, "tokenizer": TOKENIZER, "engine": engine | {"seed": 1}}
    text = deployment_text("two", engine=engine | {"seed": 2}, endpoints=ENDPOINTS, release=2, other_releases=[older])
    return RunningServer(text, folder)
