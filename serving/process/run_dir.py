# SPDX-License-Identifier: Apache-2.0
"""The folder in which the processes of one server find each other's sockets; only its owner can enter it."""

import os
import tempfile
from pathlib import Path

RUN_DIR_VARIABLE = "TRIREME_RUN_DIR"


def run_dir() -> Path:
    """Return the folder that `trireme serve` names; below a plain `tritonserver`, make one named by the server's pid.

    Raises:
        PermissionError: the folder belongs to somebody else.
    """
    named = os.environ.get(RUN_DIR_VARIABLE)
    if named:
        return Path(named)
    folder = Path(tempfile.gettempdir()) / f"trireme-{os.getuid()}-{os.getppid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} is not ours; remove it, or set {RUN_DIR_VARIABLE}")
    return folder
