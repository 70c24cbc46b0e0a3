# SPDX-License-Identifier: Apache-2.0
"""Parameters of requests and responses, between JSON and KServe's messages."""

from typing import Any

from trireme.base.errors import RequestError

_LARGEST_INT64 = 2**63 - 1


def set_parameter(parameters: Any, name: str, value: object) -> None:
    """Put a JSON value among a request's parameters.

    Raises:
        RequestError: the value is no text, number or truth value, or Triton reserves the name.
    """
    if name.startswith("triton_"):
        raise RequestError(f"the parameter {name} begins with triton_, which Triton keeps to itself", field=name)
    field = parameters[name]
    if isinstance(value, bool):
        field.bool_param = value
    elif isinstance(value, int) and -_LARGEST_INT64 <= value <= _LARGEST_INT64:
        field.int64_param = value
    elif isinstance(value, int) and 0 <= value < 2**64:
        field.uint64_param = value
    elif isinstance(value, float):
        field.double_param = value
    elif isinstance(value, str):
        field.string_param = value
    else:
        raise RequestError(
            f"the parameter {name} must be text, a number or true or false, got {str(value)[:100]}", field=name
        )


def parameters_of(message: Any) -> dict[str, object]:
    """Return the parameters of a response as JSON values, without the parameters that only gRPC has."""
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in message.parameters.items()
        if name != "triton_final_response" and value.WhichOneof("parameter_choice")
    }
