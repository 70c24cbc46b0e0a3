# SPDX-License-Identifier: Apache-2.0
"""Triton's `generate` extension: one flat JSON object for a request and one for each response.

It behaves like Triton's own (`GenerateRequestClass` in its `http_server.cc`), except where Triton accepts in silence: a
key that no input has is refused for Trireme's models, and a number that does not fit into its tensor's type always.
"""

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from tritonclient.grpc import service_pb2

from serving.frontend.common.infer_limits import check_shape
from serving.frontend.common.served_models import Model
from serving.frontend.http.parameters import parameters_of, set_parameter
from serving.frontend.http.tensor_values import flat, from_raw, num_elements, spread, to_raw
from serving.requests.request_parameters import KNOWN_PARAMETERS
from trireme.base.errors import RequestError

_NESTED = "parameters"  # keys in this object count as keys of the request


def to_request(body: object, name: str, version: str, model: Model, *, known_parameters: Collection[str] | None) -> Any:
    """Return the `ModelInferRequest` that a JSON object stands for.

    Args:
        known_parameters: of a model with every input in the contract, so that another key is a mistake; None: any key
            is a parameter.

    Raises:
        RequestError: a key or its value is wrong; the text gives the key, the value and what is allowed.
    """
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object with a model's inputs as keys", field="body")
    request = service_pb2.ModelInferRequest(model_name=name, model_version=version)
    nested = body.get(_NESTED, {})
    if not isinstance(nested, dict):
        raise RequestError("parameters must be an object of inputs and parameters", field=_NESTED)
    if twice := body.keys() & nested.keys():
        raise RequestError(f"{min(twice)} is given twice, outside of parameters and in it", field=min(twice))
    for key, value in {**body, **nested}.items():
        if key in model.inputs:
            _add_tensor(request, key, value, *model.inputs[key])
        elif key == "id":
            if not isinstance(value, str):
                raise RequestError("id must be text", field="id", value=value)
            request.id = value
        elif key != _NESTED:
            if known_parameters is not None and key not in known_parameters:
                raise _unknown(key, name, model.inputs)
            set_parameter(request.parameters, key, value)
    return request


def to_json(response: Any) -> dict[str, object]:
    """Return the JSON object of one `ModelInferResponse`.

    Raises:
        ServerError: its contents do not match its shapes.
    """
    found: dict[str, object] = {"model_name": response.model_name, "model_version": response.model_version}
    if response.id:
        found["id"] = response.id
    found |= parameters_of(response)
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        values = from_raw(output.name, output.datatype, raw, num_elements(output.shape))
        found[output.name] = values[0] if len(values) == 1 else values
    return dict(sorted(found.items()))


def _add_tensor(request: Any, name: str, value: object, data_type: str, shape: tuple[int, ...]) -> None:
    if isinstance(value, list) and any(isinstance(each, list) for each in value):
        raise RequestError(f"{name} must be a value or a flat list of values, got a list of lists", field=name)
    if isinstance(value, dict) or value is None:
        raise RequestError(f"{name} must be a value or a list of values, got {str(value)[:100]}", field=name)
    values = flat(value)
    tensor = request.inputs.add(name=name, datatype=data_type, shape=spread(name, len(values), shape))
    check_shape(name, data_type, tensor.shape)
    request.raw_input_contents.append(to_raw(name, data_type, values))


def _unknown(key: str, model: str, inputs: Collection[str] | Mapping[str, object]) -> RequestError:
    known = sorted({*inputs, *KNOWN_PARAMETERS})
    close = difflib.get_close_matches(key[:64], known, n=1, cutoff=0.6)
    hint = f"; {close[0]} is one" if close else ""
    return RequestError(
        f"{key[:100]} is no input of {model} and no parameter{hint}; docs/contract.md lists them", field=key[:100]
    )
