# SPDX-License-Identifier: Apache-2.0
"""The file of results, which is its own journal: every line's id names the input file and the line that it answers.

A line is written by one append and counts from its newline on. What a crash has left behind it is cut when the job is
resumed, so each line is there exactly once, whenever the process was killed. After a power failure it is so up to the
last `sync`; lines lost with it are asked again.
"""

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Self

import msgspec

from trireme.base.errors import SpecError
from trireme.base.known_types import known
from trireme.base.path_checks import check_file_to_write

_HASH_CHARS = 24


class _Result(msgspec.Struct):
    id: str
    response: msgspec.Raw
    error: msgspec.Raw


_RESULT = msgspec.json.Decoder(known(_Result))


class ResultsFile:
    """The file of results, open and locked inside a `with`; another process that opens it is refused.

    Args:
        path: the file; it is made where it is not there, with its folders.
        input_sha256: hash of the file that is answered.
        last_line: number of that file's last line.

    Raises:
        SpecError: it cannot be written, another run holds it, or it has lines that are not this job's.
    """

    def __init__(self, path: Path, *, input_sha256: str, last_line: int) -> None:
        check_file_to_write("--out", path)
        self.path = path
        self.num_done = self.num_failed = self.num_cut_bytes = 0
        self._prefix = f"batch_req_{input_sha256[:_HASH_CHARS]}_"
        self._is_done = bytearray(last_line + 1)
        self._is_dirty = False
        path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
        try:
            self._refuse_device()
            self._lock()
            self._take_stock()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.sync()
        finally:
            os.close(self._fd)

    def id_of(self, number: int) -> str:
        """Return the id of the result of a line."""
        return f"{self._prefix}{number}"

    def has(self, number: int) -> bool:
        """Return whether a line of the input has its result."""
        return bool(self._is_done[number])

    def append(self, number: int, line: bytes, *, is_failed: bool) -> None:
        """Write the result of a line of the input, once.

        Raises:
            OSError: it cannot be written; what is there of it is cut when the job is resumed.
        """
        assert not self._is_done[number], f"line {number} has a result already"
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._fd, rest) :]
        self._note(number, is_failed=is_failed)
        self._is_dirty = True

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        if self._is_dirty:
            self._is_dirty = False
            os.fsync(self._fd)

    def _note(self, number: int, *, is_failed: bool) -> None:
        self._is_done[number] = 1
        self.num_done += 1
        self.num_failed += is_failed

    def _refuse_device(self) -> None:
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            message = f"--out {self.path} is a device or a pipe; a job goes on from what its file holds: name a file"
            raise SpecError(message, file=self.path)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel gives it back, however we end
        except BlockingIOError as exc:
            message = f"--out {self.path}: another run writes to it; wait for its end, or name another file"
            raise SpecError(message, file=self.path) from exc

    def _take_stock(self) -> None:
        end = 0
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for count, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    self._check_torn(line, count)
                    self.num_cut_bytes = len(line)
                    os.ftruncate(self._fd, end)
                    break
                self._take(line, count)
                end += len(line)

    def _take(self, line: bytes, count: int) -> None:
        result, number = None, ""
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            result = _RESULT.decode(line)
            number = result.id.removeprefix(self._prefix)
        if result is None or number == result.id or not (number.isascii() and number.isdecimal()):
            raise self._not_ours(count)
        if not 0 < int(number) < len(self._is_done) or self._is_done[int(number)]:
            raise self._not_ours(count)
        self._note(int(number), is_failed=bytes(result.error) != b"null")

    def _check_torn(self, line: bytes, count: int) -> None:
        begin = f'{{"id":"{self._prefix}'.encode()
        if line[: len(begin)] != begin[: len(line)]:
            raise self._not_ours(count)

    def _not_ours(self, count: int) -> SpecError:
        return SpecError(
            f"--out {self.path}: line {count} is not a result of this input file, or is there twice; a job is resumed "
            "with the file that it was started with, byte for byte: name that one, or another --out",
            file=self.path,
            line=count,
        )
