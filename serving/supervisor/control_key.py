# SPDX-License-Identifier: Apache-2.0
"""The key that Triton's restricted APIs ask for, which an operator puts into a file such as a mounted Secret."""

from pathlib import Path

from trireme.base.errors import SpecError

_MIN_CHARACTERS, _MAX_CHARACTERS = 16, 256
# Triton's option is --http-restricted-api=API,API:HEADER=KEY, and some of its options are lists by ";".
_SEPARATORS = ":=;,"


def read_control_key(path: Path) -> str:
    """Return the key in a file, without a newline at its end. No message quotes the key.

    Raises:
        SpecError: the file cannot be read, or its content cannot be used as a key.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CHARACTERS + 3)
    except OSError as exc:
        raise _unusable(path, f"cannot be read: {(exc.strerror or str(exc)).lower()}") from exc
    key = content.removesuffix(b"\n").removesuffix(b"\r").decode("latin-1")
    if not key:
        raise _unusable(path, "is empty")
    if len(key) > _MAX_CHARACTERS:
        raise _unusable(path, f"holds more than {_MAX_CHARACTERS} characters")
    if len(key) < _MIN_CHARACTERS:
        raise _unusable(path, f"holds {len(key)} characters")
    for number, character in enumerate(key, 1):
        if not "!" <= character <= "~" or character in _SEPARATORS:
            raise _unusable(path, f"cannot be used: its character {number} is not allowed")
    return key


def _unusable(path: Path, why: str) -> SpecError:
    return SpecError(
        f"--control-key-file {path} {why}; write {_MIN_CHARACTERS} to {_MAX_CHARACTERS} characters to it, of printable "
        f"ASCII without white space and {' '.join(_SEPARATORS)} (such as from `openssl rand -hex 24`)",
        field="control_key_file",
        value=str(path),
    )
