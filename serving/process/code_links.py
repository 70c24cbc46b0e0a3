# SPDX-License-Identifier: Apache-2.0
"""The engine's code for a process in an environment that does not hold Trireme."""

import contextlib
from pathlib import Path

from trireme.base.project_files import CODE_ROOT

# What the engine's process imports of ours. Its own environment has the rest, in its own versions.
_PACKAGES = ("ensemble_configs", "serving", "trireme")


def code_links(folder: Path) -> Path:
    """Return a folder for PYTHONPATH with nothing in it but the packages that an engine's process imports.

    The folder that Trireme is installed in would not do: there are the server's packages beside Trireme's, which would
    hide those of the other environment.

    Args:
        folder: where the folder is made, once.
    """
    links = folder / "code"
    links.mkdir(exist_ok=True)
    for name in _PACKAGES:
        with contextlib.suppress(FileExistsError):  # of another engine of this server
            (links / name).symlink_to(CODE_ROOT / name)
    return links
