# SPDX-License-Identifier: Apache-2.0
"""Files that are there whole or not at all, also after a power failure."""

import os
from pathlib import Path


def draft_of(path: Path) -> Path:
    """Return the draft of a file until it is whole; the same name each time, so that no draft is left for ever."""
    return path.with_name(f".{path.name}.draft")


def write_atomically(path: Path, text: str) -> None:
    """Write a file in one step that cannot be seen half done; the text is on the disk when this returns."""
    draft = draft_of(path)
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's bytes, or the names in a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
