# SPDX-License-Identifier: Apache-2.0
"""KServe's `infer` over HTTP: JSON with or without tensors in binary behind it, as gRPC's messages and back.

The binary extension is https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md.
"""

import json
from typing import Any, NamedTuple

import msgspec
from tritonclient.grpc import service_pb2

from serving.frontend.common.infer_limits import check_output_parameter, check_shape
from serving.frontend.common.served_models import Model
from serving.frontend.http.parameters import parameters_of, set_parameter
from serving.frontend.http.tensor_values import flat, from_raw, num_elements, spread, to_raw, value_bytes
from trireme.base.errors import RequestError
from trireme.base.known_types import known


class Asked(NamedTuple):
    """A request, and the form of answer that its client wants."""

    message: Any  # ModelInferRequest
    binary_outputs: dict[str, bool]  # by the names of requested outputs
    is_binary: bool  # all other outputs


def to_request(body: bytes, header_length: int | None, name: str, version: str, model: Model) -> Asked:
    """Return the `ModelInferRequest` that a body stands for.

    Args:
        body: JSON, and the binary tensors behind it.
        header_length: how many bytes of the body are JSON; None: all; 0: none, the body is the one input's value.

    Raises:
        RequestError: the body does not follow KServe's protocol.
    """
    message = service_pb2.ModelInferRequest(model_name=name, model_version=version)
    if header_length == 0:
        _add_whole_body(message, body, model)
        return Asked(message, {}, is_binary=True)
    cut = len(body) if header_length is None else header_length
    if not 0 <= cut <= len(body):
        raise RequestError(
            f"Inference-Header-Content-Length must be a number from 0 to {len(body)}, the bytes of the body; got {cut}",
            field="Inference-Header-Content-Length",
            value=cut,
        )
    try:
        head = msgspec.json.decode(body[:cut], type=known(_Head))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as exc:
        raise RequestError(f"the body is no inference request: {exc}", field="body") from exc
    message.id = head.id
    is_binary = False
    for key, value in head.parameters.items():
        if key == "binary_data_output":
            is_binary = bool(value)
        else:
            set_parameter(message.parameters, key, value)
    rest = body[cut:]
    for tensor in head.inputs:
        rest = _add_input(message, tensor, rest)
    if rest:
        raise RequestError(f"{len(rest)} bytes more than the inputs say", field="body")
    return Asked(message, {each.name: _add_output(message, each) for each in head.outputs}, is_binary)


def to_body(response: Any, asked: Asked) -> tuple[bytes, int | None]:
    """Return the body of a response, and how many bytes of it are JSON; None: all.

    Raises:
        ServerError: the response's contents do not match its shapes.
    """
    found: dict[str, Any] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        found = {"id": response.id, **found}
    if parameters := parameters_of(response):
        found["parameters"] = parameters
    found["outputs"] = []
    binary = []
    contents = list(response.raw_output_contents) or [None] * len(response.outputs)
    for output, raw in zip(response.outputs, contents, strict=True):
        told: dict[str, Any] = {"name": output.name, "datatype": output.datatype, "shape": list(output.shape)}
        if raw is None or "shared_memory_region" in output.parameters:  # the client has it there
            told["parameters"] = parameters_of(output)
        elif asked.binary_outputs.get(output.name, asked.is_binary):
            told["parameters"] = {"binary_data_size": len(raw)}
            binary.append(raw)
        else:
            told["data"] = from_raw(output.name, output.datatype, raw, num_elements(output.shape))
        found["outputs"].append(told)
    head = json.dumps(found, separators=(",", ":"), ensure_ascii=False).encode()
    return (head + b"".join(binary), len(head)) if any(binary) else (head, None)


class _Input(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET
    parameters: dict[str, Any] = {}


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = {}


class _Head(msgspec.Struct):
    inputs: list[_Input]
    outputs: list[_Output] = []
    id: str = ""
    parameters: dict[str, Any] = {}


def _add_input(message: Any, given: _Input, rest: bytes) -> bytes:
    """Add one tensor; return the rest of the bytes behind the JSON."""
    has_region = "shared_memory_region" in given.parameters
    size = given.parameters.get("binary_data_size")
    if (given.data is not msgspec.UNSET) + (size is not None) + has_region != 1:
        raise RequestError(
            f"{given.name} must have exactly one of data, parameters.binary_data_size and "
            "parameters.shared_memory_region",
            field=given.name,
        )
    if any(not 0 <= dim < 2**63 for dim in given.shape):
        raise RequestError(f"the shape of {given.name} must be of numbers from 0 on", field=given.name)
    check_shape(given.name, given.datatype, given.shape)
    tensor = message.inputs.add(name=given.name, datatype=given.datatype, shape=given.shape)
    if has_region:
        for key, value in given.parameters.items():
            set_parameter(tensor.parameters, key, value)
        return rest
    if size is not None:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(rest):
            raise RequestError(
                f"binary_data_size of {given.name} must be a number from 0 to {len(rest)}, the bytes that are left; "
                f"got {size!r}",
                field=given.name,
            )
        message.raw_input_contents.append(rest[:size])
        return rest[size:]
    values = flat(given.data)
    if len(values) != num_elements(given.shape):
        raise RequestError(
            f"{given.name} has {len(values)} values, and its shape {given.shape} wants {num_elements(given.shape)}",
            field=given.name,
        )
    message.raw_input_contents.append(to_raw(given.name, given.datatype, values))
    return rest


def _add_output(message: Any, wanted: _Output) -> bool:
    """Name an output; return whether it is wanted in binary."""
    output = message.outputs.add(name=wanted.name)
    for key, value in wanted.parameters.items():
        check_output_parameter(wanted.name, key)
        if key != "binary_data":
            set_parameter(output.parameters, key, value)
    return wanted.parameters.get("binary_data") is True


def _add_whole_body(message: Any, body: bytes, model: Model) -> None:
    if len(model.inputs) != 1:
        raise RequestError(
            f"a body without JSON is for models with one input; this one has {len(model.inputs)}", field="body"
        )
    [(name, (data_type, shape))] = model.inputs.items()
    num_values = 1 if data_type == "BYTES" else len(body) // value_bytes(data_type)
    if data_type == "BYTES":
        body = len(body).to_bytes(4, "little") + body
    message.inputs.add(name=name, datatype=data_type, shape=spread(name, num_values, shape))
    message.raw_input_contents.append(body)
