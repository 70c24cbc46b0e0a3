# SPDX-License-Identifier: Apache-2.0
"""What a `ModelInferRequest` may hold before Triton reads it: only what would harm the server is refused here.

The message is walked field by field, not parsed: tensors are skipped over, and the number of fields is bounded, since
two bytes on the line can be a hundred in a parser's memory.
"""

import math
from collections.abc import Iterable, Iterator

from ensemble_configs.errors import RequestError

# Far above any tensor that fits in memory. numpy counts the dims of an array without elements, too, and refuses what
# would not fit into 64 bits; Triton's Python stub does not catch that, and aborts.
MAX_ELEMENTS = 2**48
# Triton 2.51 unpacks each in a loop of Python before the model sees any of them: a second for a million.
MAX_TEXTS = 100_000
MAX_FIELDS = 20_000  # of a message with the tensors in it
_MAX_SHAPE_BYTES = 2_000
_MAX_NAME_BYTES = 1_000
_MODEL = 1  # a field of ModelInferRequest
_INPUTS, _NAME, _DATATYPE, _SHAPE, _CONTENTS = 5, 1, 2, 3, 5  # fields of ModelInferRequest, and of its InferInputTensor
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types

Field = tuple[int, int | memoryview]


class _Unreadable(Exception):
    """What is no message; Triton says so itself."""


def check_message(message: bytes) -> str:
    """Check one serialized request; return the name of the model that it asks.

    One that cannot be parsed is left to Triton, which refuses it.

    Raises:
        RequestError: a tensor of it would end the process of a model, or it has too many fields.
    """
    budget = iter(range(MAX_FIELDS))
    model = ""
    try:
        for number, value in _fields(memoryview(message), budget):
            if number == _MODEL and not isinstance(value, int):
                model = bytes(value[:_MAX_NAME_BYTES]).decode(errors="replace")
            if number == _INPUTS and not isinstance(value, int):
                _check_tensor(value, budget)
    except _Unreadable:
        pass
    return model


def check_shape(name: str, data_type: str, shape: Iterable[int]) -> None:
    """Check the dims of a tensor.

    Raises:
        RequestError: they are too large, though the tensor may have no elements.
    """
    dims = list(shape)
    most = MAX_TEXTS if data_type == "BYTES" else MAX_ELEMENTS
    if math.prod(max(abs(dim), 1) for dim in dims) > most:
        shown = str(dims)[:200]
        what = " of texts" if data_type == "BYTES" else ""
        raise RequestError(
            f"the shape of {name[:100]}{what} is {shown}; the dims that are not 0 may be at most {most} multiplied",
            field=name[:100],
            value=shown,
        )


def _check_tensor(tensor: memoryview, budget: Iterator[int]) -> None:
    name, data_type, dims = "?", "", list[int]()
    for number, value in _fields(tensor, budget):
        if number == _NAME and not isinstance(value, int):
            name = bytes(value[:100]).decode(errors="replace")
        elif number == _DATATYPE and not isinstance(value, int):
            data_type = bytes(value[:10]).decode(errors="replace")
        elif number == _SHAPE:
            dims += [value] if isinstance(value, int) else _packed(value)
        elif number == _CONTENTS and not isinstance(value, int):
            for _ in _fields(value, budget):
                pass  # counted
    check_shape(name, data_type, [dim - 2**64 if dim >= 2**63 else dim for dim in dims])


def _packed(values: memoryview) -> list[int]:
    if len(values) > _MAX_SHAPE_BYTES:
        raise RequestError(f"a shape of {len(values)} bytes; at most {_MAX_SHAPE_BYTES} are read", field="shape")
    found, position = [], 0
    while position < len(values):
        value, position = _varint(values, position)
        found.append(value)
    return found


def _fields(message: memoryview, budget: Iterator[int]) -> Iterator[Field]:
    position, end = 0, len(message)
    while position < end:
        if next(budget, None) is None:
            raise RequestError(
                f"a request of more than {MAX_FIELDS} fields; send texts and numbers as one tensor's raw contents",
                field="num_fields",
            )
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
        elif kind == _BYTES:
            length, position = _varint(message, position)
            if position + length > end:
                raise _Unreadable
            yield key >> 3, message[position : position + length]
            position += length
        elif kind in {_FIXED64, _FIXED32}:
            position += 8 if kind == _FIXED64 else 4
        else:
            raise _Unreadable


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise _Unreadable
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
