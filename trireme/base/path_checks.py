# SPDX-License-Identifier: Apache-2.0
"""Checks that an option's path can be written, made before any work; nothing is left there."""

import os
import tempfile
from pathlib import Path

from trireme.base.errors import SpecError


def check_folder_to_write(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written to, or, where it is not there yet, cannot be made.

    Raises:
        SpecError: names the option, the path, the reason and the next step.
    """
    try:
        place = next(path for path in (folder, *folder.absolute().parents) if _is_there(path))
        if not place.is_dir():
            raise _refusal(option, folder, f"{place} is not a folder")
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as exc:
        raise _refusal(option, folder, exc.strerror or str(exc)) from exc


def check_file_to_write(option: str, file: Path) -> None:
    """Refuse a file that cannot be written, or whose folder cannot be made.

    Raises:
        SpecError: names the option, the path, the reason and the next step.
    """
    check_folder_to_write(option, file.parent)
    if file.is_dir():
        raise SpecError(f"{option} {file} is a folder; name a file in it", file=file)
    if file.exists() and not os.access(file, os.W_OK):
        raise SpecError(f"{option} {file} cannot be written: Permission denied; name another file", file=file)


def _is_there(path: Path) -> bool:
    """Return whether a path exists; unlike `Path.exists`, true of a broken link, where no folder can be made."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _refusal(option: str, folder: Path, why: str) -> SpecError:
    return SpecError(f"{option} {folder} cannot be written to: {why}; name a folder that you may write to", file=folder)
