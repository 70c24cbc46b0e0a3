# SPDX-License-Identifier: Apache-2.0
"""An array as bytes, for tensors that are too large to cross the seam number by number."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


class PackedArray(msgspec.Struct, frozen=True, array_like=True):
    """The elements of an array in C order, little endian, with what is needed to read them."""

    data_type: str  # as numpy writes it: float16, int32, ...
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of(cls, array: Array) -> "PackedArray":
        """Return a copy of an array."""
        return cls(array.dtype.name, array.shape, array.tobytes())

    def array(self) -> Array:
        """Return the array, read-only; nothing is copied."""
        return np.frombuffer(self.data, dtype=self.data_type).reshape(self.shape)

    def __repr__(self) -> str:
        return f"{self.data_type}{list(self.shape)}"


def join_rows(parts: Sequence[PackedArray]) -> PackedArray:
    """Return one array with the rows of all parts, along the first axis; rows must be of one shape."""
    first = parts[0]
    shape = (sum(part.shape[0] for part in parts), *first.shape[1:])
    return PackedArray(first.data_type, shape, b"".join(part.data for part in parts))


def first_rows(part: PackedArray, num_rows: int) -> PackedArray:
    """Return the rows ``[0, num_rows)``."""
    num_bytes = num_rows * math.prod(part.shape[1:]) * np.dtype(part.data_type).itemsize
    return PackedArray(part.data_type, (num_rows, *part.shape[1:]), part.data[:num_bytes])
