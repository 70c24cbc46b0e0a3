# SPDX-License-Identifier: Apache-2.0
"""A link to a file in a second place of the same disk, or a copy where the file system cannot link."""

import os
import shutil
from pathlib import Path


def link_or_copy(source: Path, target: Path) -> None:
    """Make `target` a hard link to `source`, or a copy where there are no hard links; make the folders above it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
