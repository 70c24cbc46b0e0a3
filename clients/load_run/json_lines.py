# SPDX-License-Identifier: Apache-2.0
"""Files with a JSON object a line: written as things happen, so that a file may end in the middle of its last line."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar

import msgspec

from trireme.base.durable_files import write_atomically
from trireme.base.errors import ServingError, SpecError
from trireme.base.known_types import known

T = TypeVar("T")


class LinesFile:
    """A new file of JSON lines, inside a `with`; what is added is in it, and not in a buffer of this process.

    Raises:
        ServingError: there, or later, it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("wb", buffering=0)
        except OSError as exc:
            raise _cannot_write(path, exc) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def add(self, items: Iterable[msgspec.Struct]) -> None:
        """Write a line for each item."""
        left = memoryview(b"".join(msgspec.json.encode(item) + b"\n" for item in items))
        try:
            while left:  # a full disk takes a part first
                left = left[self._file.write(left) :]
        except OSError as exc:
            raise _cannot_write(self._path, exc) from exc


def write_json(path: Path, item: msgspec.Struct) -> None:
    """Write one item to a file of its own, with its folder.

    Raises:
        ServingError: the file cannot be written; the one before stays.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, msgspec.json.format(msgspec.json.encode(item), indent=1).decode() + "\n")
    except OSError as exc:
        raise _cannot_write(path, exc) from exc


def _cannot_write(path: Path, exc: OSError) -> ServingError:
    """Return the error of a file that cannot be written, with what to do about it."""
    return ServingError(
        f"{path} cannot be written: {exc.strerror or exc}; what is in the folder is kept; make room, or name another "
        "place with --out"
    )


class Lines(NamedTuple, Generic[T]):
    """The items of a file.

    `is_cut`: the file's last line was not whole, and is not among the items.
    """

    items: list[T]
    is_cut: bool


def read_lines(path: Path, kind: type[T], *, check: Callable[[T], None] = lambda _: None) -> Lines[T]:
    """Return the items that were added to a `LinesFile`.

    Args:
        check: raises ValueError for an item that cannot be.

    Raises:
        SpecError: it cannot be read, or a line other than a cut last one is no such item; with its number.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as exc:
        raise SpecError(f"{path} cannot be read: {exc.strerror or exc}", field="run") from exc
    decoder, items = msgspec.json.Decoder(known(kind)), list[T]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            item = decoder.decode(line)
            check(item)
        except ValueError as exc:
            has_end = number < len(lines) or isinstance(exc, msgspec.ValidationError)
            if isinstance(exc, msgspec.DecodeError) and not has_end:
                return Lines(items, is_cut=True)
            raise SpecError(f"{path}, line {number}: {exc}; mend it, or take the line out", field="run") from exc
        items.append(item)
    return Lines(items, is_cut=False)
