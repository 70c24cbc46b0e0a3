# SPDX-License-Identifier: Apache-2.0
"""Where the control socket of a server lies, for the server and for whoever calls it."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

CONTROL_SOCKET = "control.sock"  # in build/NAME


@contextlib.contextmanager
def short_address(path: Path) -> Iterator[str]:
    """A name for a socket whose path may be longer than the 107 bytes that the kernel takes.

    Raises:
        OSError: its folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
