# SPDX-License-Identifier: Apache-2.0
"""A response of a stream as the bytes that a gRPC client gets, written without a library: one for each token.

The fields are those of KServe's `ModelStreamInferResponse` (`inference.proto` of its open inference protocol), with
the parameter by which Triton tells a last response.
"""

import functools
import struct

import numpy as np
import numpy.typing as npt

from serving.requests.tensor_sink import Tensors

_DATA_TYPES = {  # by numpy's character: a type's name takes ten times as long
    "?": "BOOL",
    "B": "UINT8",
    "i": "INT32",
    "l": "INT64",
    "L": "UINT64",
    "e": "FP16",
    "f": "FP32",
    "O": "BYTES",
}
_INFER_RESPONSE = 2  # field of ModelStreamInferResponse
_MODEL, _VERSION, _ID, _PARAMETERS, _OUTPUTS, _RAW = range(1, 7)  # fields of ModelInferResponse
_NAME, _DATA_TYPE, _SHAPE = 1, 2, 3  # fields of its InferOutputTensor
_KEY, _VALUE, _BOOL = 1, 2, 1  # fields of an entry of a map, and of an InferParameter
_MESSAGE_HEAD = struct.Struct(">?I")  # of gRPC: whether it is packed, and its length
_LENGTH = struct.Struct("<I")  # of a text in a tensor


class StreamMessages:
    """The messages of one request's stream, none of them the last.

    Args:
        model: name of the model that answers.
        version: its version.
        request_id: given by the client; may be empty.
    """

    def __init__(self, model: str, version: str, request_id: str) -> None:
        self._head = _model_head(model, version) + (_text(_ID, request_id) if request_id else b"") + _NOT_FINAL

    def message(self, tensors: Tensors) -> bytes:
        """Return one response, with gRPC's five bytes before it."""
        response = b"".join(
            [
                self._head,
                *[_output(name, tensor.dtype.char, tensor.shape) for name, tensor in tensors.items()],
                *[_bytes(_RAW, _raw(tensor)) for tensor in tensors.values()],
            ]
        )
        message = _bytes(_INFER_RESPONSE, response)
        return _MESSAGE_HEAD.pack(False, len(message)) + message


def _varint(number: int) -> bytes:
    if number < 0x80:
        return _SMALL[number]
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _bytes(field: int, value: bytes) -> bytes:
    return _SMALL[field << 3 | 2] + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode())


_SMALL = [bytes([number]) for number in range(0x80)]
_FALSE = _SMALL[_BOOL << 3] + b"\x00"
_NOT_FINAL = _bytes(_PARAMETERS, _text(_KEY, "triton_final_response") + _bytes(_VALUE, _FALSE))


@functools.lru_cache(maxsize=256)
def _model_head(model: str, version: str) -> bytes:
    return _text(_MODEL, model) + _text(_VERSION, version)


@functools.lru_cache(maxsize=4096)
def _output(name: str, dtype_char: str, shape: tuple[int, ...]) -> bytes:
    dims = b"".join(map(_varint, shape))
    return _bytes(_OUTPUTS, _text(_NAME, name) + _text(_DATA_TYPE, _DATA_TYPES[dtype_char]) + _bytes(_SHAPE, dims))


def _raw(tensor: npt.NDArray[np.generic]) -> bytes:
    if tensor.dtype != np.object_:
        return tensor.tobytes()
    texts: list[bytes] = tensor.ravel().tolist()
    return b"".join([part for text in texts for part in (_LENGTH.pack(len(text)), text)])
