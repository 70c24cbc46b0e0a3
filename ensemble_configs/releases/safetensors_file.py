# SPDX-License-Identifier: Apache-2.0
"""A reader of safetensors files that does not trust them: a checkpoint comes from anywhere, and its header may lie.

Format: 8 bytes length of the header (little endian), the header as JSON, then the tensors without gaps. Source: the
safetensors README, "Format", whose rules are all checked here.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trireme.base.errors import SpecError

MAX_HEADER_BYTES = 100_000_000  # the library's own limit
_LENGTH_BYTES = 8
_METADATA = "__metadata__"
_MAX_DIMENSIONS = 16
_NEXT_STEP = "download the file again, or save the checkpoint anew"

# Bits of a number; those of 4 and 6 are packed.
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
_FLOATS = {"F16": "<f2", "F32": "<f4", "F64": "<f8"}


@dataclass(frozen=True)
class StoredTensor:
    """The place of a tensor in its file; its numbers are the file's bytes ``[start, end)``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: Path
    start: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Return the tensor's size in the file, in bytes."""
        return self.end - self.start


def read_header(path: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a file by name, in the order of the header.

    Raises:
        SpecError: the file cannot be read, or is no safetensors file: too short, a header that is too large or no JSON,
            unknown types, sizes that disagree with shapes, tensors that overlap, leave gaps, or lie outside the file.
    """
    if path.exists() and not path.is_file():
        raise _wrong(path, "it is no file")
    try:
        file_bytes = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if file_bytes < _LENGTH_BYTES or length > min(MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
                raise _wrong(
                    path, f"its header should have {length:,} bytes, the file has {file_bytes:,}, the limit is "
                    f"{MAX_HEADER_BYTES:,}"
                )  # fmt: skip
            text = file.read(length)
    except OSError as exc:
        raise SpecError(f"cannot read {path}: {exc.strerror}", file=path) from exc
    tensors = [
        _stored_tensor(path, name, facts, data_start=_LENGTH_BYTES + length, file_bytes=file_bytes)
        for name, facts in _parse(path, text).items()
        if name != _METADATA
    ]
    _check_no_gaps(path, tensors, data_start=_LENGTH_BYTES + length, file_bytes=file_bytes)
    return {tensor.name: tensor for tensor in tensors}


def open_tensor(stored: StoredTensor) -> npt.NDArray[np.generic]:
    """Return a view into the file, read when used; BF16 comes as uint16, see `as_floats`.

    Raises:
        SpecError: the tensor's type is none of F16, BF16, F32, F64.
    """
    dtype = "<u2" if stored.dtype == "BF16" else _FLOATS.get(stored.dtype)
    if dtype is None:
        raise SpecError(
            f"{stored.file}: {stored.name} is {stored.dtype}; only F16, BF16, F32 and F64 are read here",
            file=stored.file,
            value=stored.dtype,
        )
    if 0 in stored.shape:
        return np.zeros(stored.shape, dtype)
    return np.memmap(stored.file, dtype, mode="r", offset=stored.start, shape=stored.shape or (1,)).reshape(
        stored.shape
    )


def as_floats(stored: StoredTensor, numbers: npt.NDArray[np.generic]) -> npt.NDArray[np.float32]:
    """Return numbers of `open_tensor` as 32-bit floats; BF16 is the upper half of a float."""
    if stored.dtype == "BF16":
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _parse(path: Path, text: bytes) -> dict[str, object]:
    if not text.startswith(b"{"):
        raise _wrong(path, "its header does not begin with {")
    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as exc:
        raise _wrong(path, f"its header is no JSON ({exc})") from exc
    assert isinstance(header, dict)  # it began with {
    return header


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in values if names.count(name) > 1)
        raise ValueError(f"{twice!r} is there twice")
    return values


def _stored_tensor(path: Path, name: str, facts: object, *, data_start: int, file_bytes: int) -> StoredTensor:
    values = facts if isinstance(facts, dict) else {}
    dtype, shape, offsets = values.get("dtype"), _counts(values.get("shape")), _counts(values.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _wrong(path, f"{name!r} has the unknown type {str(dtype)[:40]!r}")
    if shape is None or len(shape) > _MAX_DIMENSIONS:
        raise _wrong(path, f"{name!r} has no shape of at most {_MAX_DIMENSIONS} whole numbers")
    if offsets is None or len(offsets) != 2 or not offsets[0] <= offsets[1] <= file_bytes - data_start:
        raise _wrong(path, f"{name!r} does not lie in the file (data_offsets {str(values.get('data_offsets'))[:80]})")
    start, end = offsets
    if DTYPE_BITS[dtype] * _product(shape, limit=16 * file_bytes) != 8 * (end - start):
        raise _wrong(
            path, f"{name!r} has {end - start:,} bytes, which is not what {dtype} {str(list(shape))[:80]} takes"
        )
    return StoredTensor(name, dtype, shape, path, data_start + start, data_start + end)


def _counts(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers from 0 on, each small enough to be a size or an offset in a file; else None."""
    if not isinstance(value, list) or not all(type(one) is int and 0 <= one < 2**63 for one in value):
        return None
    return tuple(value)


def _product(sizes: tuple[int, ...], *, limit: int) -> int:
    """Return the product, or a number a little above `limit`, so that no header makes numbers without end."""
    product = 1
    for size in sorted(sizes):  # a 0 comes first
        product = min(product * size, limit + 1)
    return product


def _check_no_gaps(path: Path, tensors: list[StoredTensor], *, data_start: int, file_bytes: int) -> None:
    end, before = data_start, "the header"
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if tensor.start != end:
            verb = "overlaps" if tensor.start < end else "leaves a gap behind"
            raise _wrong(path, f"{tensor.name!r} {verb} {before!r}")
        end, before = tensor.end, tensor.name
    if end != file_bytes:
        raise _wrong(path, f"{file_bytes - end:,} bytes behind the last tensor belong to none")


def _wrong(path: Path, what: str) -> SpecError:
    return SpecError(f"{path} is no whole safetensors file: {what}; {_NEXT_STEP}", file=path)
