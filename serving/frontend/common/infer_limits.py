# SPDX-License-Identifier: Apache-2.0
"""The limits of a `ModelInferRequest` before Triton reads it: only what would harm the server is refused here.

The message is walked field by field, not parsed: tensors are skipped over, and the number of fields is bounded, since
two bytes on the line can be a hundred in a parser's memory.
"""

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from trireme.base.errors import RequestError

# Far above any tensor that fits in memory. numpy counts the dims of an array without elements, too, and refuses what
# would not fit into 64 bits; Triton's Python stub does not catch that, and aborts.
MAX_ELEMENTS = 2**48
# Triton 2.51 unpacks each in a loop of Python before the model sees any of them: a second for a million.
MAX_TEXTS = 100_000
MAX_FIELDS = 20_000  # in a message, its tensors included
_MAX_SHAPE_BYTES = 2_000
_MAX_NAME_BYTES = 1_000
_MODEL, _VERSION = 1, 2  # fields of ModelInferRequest
# Fields of ModelInferRequest, of its InferInputTensor and InferRequestedOutputTensor, and of a map's entry.
_REQUEST_PARAMETERS, _INPUTS, _OUTPUTS = 4, 5, 6
_NAME, _DATATYPE, _SHAPE, _INPUT_PARAMETERS, _CONTENTS = 1, 2, 3, 4, 5
_OUTPUT_PARAMETERS = 2
_KEY, _VALUE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types
_LARGEST_KEY = 2**32 - 1  # protobuf's parsers drop the bits beyond

Field = tuple[int, int | memoryview]


class AskedModel(NamedTuple):
    """The model that a request is for, and the version that it names; "": none."""

    name: str = ""
    version: str = ""


def check_message(message: bytes) -> AskedModel:
    """Check one serialized request; return the model that it is for.

    Raises:
        RequestError: a tensor would end the process of a model or the server, the message has too many fields, or it is
            not written as every client writes it: Triton's parser might read what this one does not.
    """
    budget = iter(range(MAX_FIELDS))
    name = version = ""
    for number, value in _blocks(memoryview(message), budget):
        if number == _MODEL:
            name = _text(value)
        elif number == _VERSION:
            version = _text(value)
        elif number == _INPUTS:
            _check_tensor(value, budget)
        elif number == _OUTPUTS:
            _check_output(value, budget)
        elif number == _REQUEST_PARAMETERS:
            _parameter(value, budget)
    return AskedModel(name, version)


def check_shape(name: str, data_type: str, shape: Iterable[int]) -> None:
    """Check the dims of a tensor.

    Raises:
        RequestError: the dims are too large, though the tensor may have no elements.
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


def check_output_parameter(output: str, key: str) -> None:
    """Check one parameter of an output that a client names.

    Raises:
        RequestError: the client wants classes of the output. Triton 2.51 divides by the size of a text, which is 0, and
            sorts numbers among which may be NaN. (Newer servers refuse texts.)
    """
    if key == "classification":
        raise RequestError(
            f"the output {output[:100]} is no classification; ask for it without the parameter", field="classification"
        )


def _check_output(output: memoryview, budget: Iterator[int]) -> None:
    name, keys = "?", list[str]()
    for number, value in _blocks(output, budget):
        if number == _NAME:
            name = _text(value)
        elif number == _OUTPUT_PARAMETERS:
            keys.append(_parameter(value, budget))
    for key in keys:
        check_output_parameter(name, key)


def _check_tensor(tensor: memoryview, budget: Iterator[int]) -> None:
    name, data_type, dims = "?", "", list[int]()
    for number, value in _fields(tensor, budget):
        if number == _SHAPE:
            dims += [value] if isinstance(value, int) else _packed(value)
        elif isinstance(value, int):
            continue
        elif number == _NAME:
            name = _text(value)
        elif number == _DATATYPE:
            data_type = _text(value)
        elif number == _INPUT_PARAMETERS:
            _parameter(value, budget)
        elif number == _CONTENTS:
            _count(value, budget)
    check_shape(name, data_type, [dim - 2**64 if dim >= 2**63 else dim for dim in dims])


def _parameter(entry: memoryview, budget: Iterator[int]) -> str:
    """Return the key of one entry of a map of parameters."""
    key = ""
    for number, value in _blocks(entry, budget):
        if number == _KEY:
            key = _text(value)
        elif number == _VALUE:
            _count(value, budget)
    return key


def _blocks(message: memoryview, budget: Iterator[int]) -> Iterator[tuple[int, memoryview]]:
    """Yield the fields that are texts, bytes or messages."""
    for number, value in _fields(message, budget):
        if not isinstance(value, int):
            yield number, value


def _count(message: memoryview, budget: Iterator[int]) -> None:
    for _ in _fields(message, budget):
        pass


def _text(value: memoryview) -> str:
    return bytes(value[:_MAX_NAME_BYTES]).decode(errors="replace")


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
        if key > _LARGEST_KEY:
            raise _unreadable(f"field {key >> 3}")
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
        elif kind == _BYTES:
            length, position = _varint(message, position)
            if position + length > end:
                raise _unreadable(f"field {key >> 3} ends behind the end of the message")
            yield key >> 3, message[position : position + length]
            position += length
        elif kind in {_FIXED64, _FIXED32}:
            position += 8 if kind == _FIXED64 else 4
        else:
            raise _unreadable(f"field {key >> 3} has wire type {kind}")


def _varint(message: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(message) or shift > 63:
            raise _unreadable("a number does not end")
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7


def _unreadable(why: str) -> RequestError:
    return RequestError(f"the message is no ModelInferRequest of KServe's: {why}", field="message")
