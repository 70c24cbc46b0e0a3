# SPDX-License-Identifier: Apache-2.0
"""The file of requests: its hash, its lines one by one, and which of them repeat a custom_id; never all in memory.

What a line says is `clients.batch.batch_line`'s.
"""

import array
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import numpy as np

from trireme.base.errors import SpecError
from trireme.base.known_types import known

MAX_LINE_BYTES = 8 << 20
_SKIP_BYTES = 1 << 20


class _JustId(msgspec.Struct):
    custom_id: str


_ID_OF = msgspec.json.Decoder(known(_JustId))


class InputFile:
    """The file of requests, open inside a `with`.

    Lines are counted from 1, as editors do; those of white space alone are not requests.

    Args:
        path: a file, as it is read several times; no pipe.

    Raises:
        SpecError: it is not a file that can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb")
        except OSError as exc:
            raise SpecError(f"IN {path} cannot be read: {exc.strerror}; name a file of batch lines", file=path) from exc
        self._state = self._stat()
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.close()
            raise SpecError(
                f"IN {path} is not a file; it is read several times, and again when the job is resumed: write a pipe "
                "to a file first",
                file=path,
            )
        self.sha256 = ""
        self.num_requests = self.last_line = 0
        self._first_with: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def scan(self) -> None:
        """Read the file from end to end, after which `sha256`, `num_requests`, `last_line` and duplicates are known.

        Memory: 8 bytes a line, and more only for lines that repeat an id.
        """
        self._file.seek(0)
        self.sha256 = hashlib.file_digest(self._file, "sha256").hexdigest()
        digests = array.array("Q")
        for number, line in self.lines():
            self.num_requests += 1
            self.last_line = number
            if (custom_id := _custom_id(line)) is not None:
                digests.append(_digest(custom_id))
        values, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_counts=True)
        repeated = {int(value) for value in values[counts > 1]}
        if repeated:
            self._find_duplicates(repeated)

    def first_with_its_id(self, number: int) -> int | None:
        """Return the number of an earlier line with this line's custom_id; None: there is none."""
        return self._first_with.get(number)

    def lines(self) -> Iterator[tuple[int, bytes | None]]:
        """Yield number and bytes of each request; None in place of more than `MAX_LINE_BYTES`.

        Raises:
            SpecError: the file has changed since it was opened.
        """
        self._file.seek(0)
        number = 0
        while line := self._file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while not line.endswith(b"\n") and (line := self._file.readline(_SKIP_BYTES)):
                    pass
                yield number, None
            elif not line.isspace():
                yield number, line
        if self._stat() != self._state:
            raise SpecError(
                f"IN {self.path} has changed while it was read; a job is about one file: start it again with another "
                "--out",
                file=self.path,
            )

    def _find_duplicates(self, repeated: set[int]) -> None:
        first: dict[str, int] = {}
        for number, line in self.lines():
            custom_id = _custom_id(line)
            if custom_id is None or _digest(custom_id) not in repeated:
                continue
            if (earlier := first.setdefault(custom_id, number)) != number:
                self._first_with[number] = earlier

    def _stat(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns


def _custom_id(line: bytes | None) -> str | None:
    if line is None:
        return None
    try:
        return _ID_OF.decode(line).custom_id
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # refused by name when its turn comes
        return None


def _digest(custom_id: str) -> int:
    return int.from_bytes(hashlib.blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")
