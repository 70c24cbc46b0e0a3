# SPDX-License-Identifier: Apache-2.0
"""The tritonserver that the tests of this folder ask, and its own answers to what differs between servers.

A test that expects something else of another server asks for the fixture `asked_server`, never for a version.
"""

import fcntl
import json
from dataclasses import asdict
from pathlib import Path

from serving.doctor.server_features import ServerFeatures, consequences
from serving.doctor.server_probe import ask_server
from serving.process.installation import find_triton


def ask_once(folder: Path) -> ServerFeatures:
    """Return the answers of the server that `find_triton` finds, asked by the first process of a test run.

    Args:
        folder: that the processes of the run share.
    """
    kept = folder / "asked_server.json"
    with (folder / "asked_server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            kept.write_text(json.dumps(asdict(ask_server(find_triton()))))
        return ServerFeatures(**json.loads(kept.read_text()))


def name_of(features: ServerFeatures) -> str:
    """Return what names a server in a report: version, program, numpy, and its answers."""
    answers = ", ".join(f"{question}: {'yes' if answer else 'no'}" for question, answer, _ in consequences(features))
    return f"tritonserver {features.version} ({features.program}), numpy {features.numpy}; {answers}"
