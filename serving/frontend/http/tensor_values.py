# SPDX-License-Identifier: Apache-2.0
"""Tensors as JSON values and as the bytes of KServe's raw contents, each way, by Triton's data types."""

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from trireme.base.errors import RequestError, ServerError

# By KServe's names: struct's letter, and the range of whole numbers.
_FORMATS = {
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "FP16": "e", "FP32": "f", "FP64": "d", "BOOL": "?",
}  # fmt: skip
_LARGEST_FP32 = 3.4028234663852886e38
_LENGTH = struct.Struct("<I")


def flat(value: object) -> list[Any]:
    """Return the values of nested lists, at any depth, in their order."""
    if not isinstance(value, list):
        return [value]
    found: list[Any] = []
    stack = [iter(value)]
    while stack:
        for each in stack[-1]:
            if isinstance(each, list):
                stack.append(iter(each))
                break
            found.append(each)
        else:
            stack.pop()
    return found


def to_raw(name: str, data_type: str, values: Sequence[Any]) -> bytes:
    """Return a tensor's raw contents, little-endian.

    Raises:
        RequestError: a value is not of the type, or does not fit into it.
    """
    if data_type == "BYTES":
        return b"".join(_with_length(_text(name, value)) for value in values)
    letter = _FORMATS.get(data_type)
    if letter is None:
        raise RequestError(
            f"{name} of type {data_type} cannot be sent as JSON; send it in binary", field=name, data_type=data_type
        )
    for value in values:
        _check(name, data_type, letter, value)
    return struct.pack(f"<{len(values)}{letter}", *values)


def from_raw(name: str, data_type: str, raw: bytes, num_values: int) -> list[Any]:
    """Return a tensor's values.

    Raises:
        ServerError: the contents do not match the shape or the type.
    """
    try:
        if data_type == "BYTES":
            return [text.decode(errors="replace") for text in _texts(raw, num_values)]
        if data_type == "BF16":
            halves = struct.unpack(f"<{num_values}H", raw)
            return list(struct.unpack(f"<{num_values}f", struct.pack(f"<{num_values}I", *(h << 16 for h in halves))))
        return list(struct.unpack(f"<{num_values}{_FORMATS[data_type]}", raw))
    except (struct.error, KeyError, ValueError) as exc:
        raise ServerError(f"output tensor shape does not match size of output for '{name}'") from exc


def _check(name: str, data_type: str, letter: str, value: object) -> None:
    if letter == "?":
        if not isinstance(value, bool):
            raise _wrong(name, value, "true or false")
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(name, value, "a number")
    if letter in "efd":
        if (letter == "f" and abs(value) > _LARGEST_FP32) or (letter == "e" and abs(value) > 65_504):
            raise _wrong(name, value, f"a number that fits into {data_type}")
        if isinstance(value, int) and abs(value) > 2**1023:
            raise _wrong(name, value, f"a number that fits into {data_type}")
        return
    bits = 8 * struct.calcsize(letter)
    low, high = (0, 2**bits - 1) if letter.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not isinstance(value, int) or not low <= value <= high:
        raise _wrong(name, value, f"a whole number from {low} to {high} ({data_type})")


def _wrong(name: str, value: object, allowed: str) -> RequestError:
    shown = ("true" if value else "false") if isinstance(value, bool) else repr(value)[:100]
    return RequestError(f"{name} must be {allowed}, got {shown}", field=name, value=shown)


def _text(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value.encode(errors="surrogatepass")


def _with_length(text: bytes) -> bytes:
    return _LENGTH.pack(len(text)) + text


def _texts(raw: bytes, num_values: int) -> Iterable[bytes]:
    position = 0
    for _ in range(num_values):
        (length,) = _LENGTH.unpack_from(raw, position)
        position += _LENGTH.size
        if position + length > len(raw):
            raise ValueError("a text ends outside")
        yield raw[position : position + length]
        position += length


def spread(name: str, num_values: int, shape: tuple[int, ...]) -> list[int]:
    """Return a model's shape with `num_values` elements: the last open dim takes all, other open dims are 1.

    Raises:
        RequestError: no such shape exists.
    """
    fixed = math.prod(dim for dim in shape if dim != -1)
    left, rest = divmod(num_values, fixed) if fixed else (0, num_values)
    if rest or (left != 1 and -1 not in shape):
        raise RequestError(
            f"{name} has {num_values} values, which do not fit into its shape {list(shape)}",
            field=name,
            value=num_values,
        )
    found = []
    for dim in reversed(shape):
        if dim == -1:
            dim, left = left, 1  # noqa: PLW2901
        found.append(dim)
    return found[::-1]


def value_bytes(data_type: str) -> int:
    """Return how many bytes a value takes; 1 for types without a fixed size."""
    letter = {"BF16": "H"}.get(data_type, _FORMATS.get(data_type, "b"))
    return struct.calcsize(letter)


def num_elements(shape: Iterable[int]) -> int:
    """Return how many values a tensor of this shape has."""
    return math.prod(shape)
