# SPDX-License-Identifier: Apache-2.0
"""What every adapter needs of Triton: where its release lies, and the one wrapper that turns errors into Triton's.

Each error fails one request, and none shows a traceback to a caller.
"""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ensemble_configs.errors import ServerError, ServingError
from ensemble_configs.model_names import prefix_of
from serving.engine_sources import named_engine
from serving.tracing.request_trace import RequestTrace
from serving.tracing.request_tracer import RequestTracer

_log = logging.getLogger("trireme.adapter")

# By name: Triton completes `triton_python_backend_utils` only after it has imported the model.
# It has no code for a deadline; the token in the text keeps the difference.
_TRITON_CODES = {
    "INVALID_ARG": "INVALID_ARG",
    "INVALID_SPEC": "INVALID_ARG",
    "UNAVAILABLE": "UNAVAILABLE",
    "DEADLINE": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
}


def triton_error(error: ServingError) -> Any:
    """Triton's form of an error: our text, with its token, and the nearest code."""
    code = _TRITON_CODES.get(error.code, "INTERNAL")
    return pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, code))


def error_response(error: ServingError) -> Any:
    """A response that holds nothing but the error."""
    return pb_utils.InferenceResponse(output_tensors=[], error=triton_error(error))


def guarded(respond: Callable[[Any], Any], request: Any, trace: RequestTrace | None = None) -> Any:
    """`respond(request)`, or the response that says why not."""
    try:
        return respond(request)
    except ServingError as exc:
        error = exc
    except Exception:
        told = trace.told if trace is not None else {}
        _log.exception("unexpected error in request %r", request.request_id(), extra=told | {"is_of_request": True})
        error = ServerError("unexpected error; the server's log has the traceback")
    if trace is not None:
        trace.end(error)
    return error_response(error)


def start_each(start: Callable[..., Any], requests: list[Any], tracer: RequestTracer) -> None:
    """`start(request, trace=...)` for each of a decoupled model's requests; what it raises is the only response."""
    for request in requests:
        trace = tracer.begin(request)
        refusal = guarded(partial(start, trace=trace), request, trace)
        if refusal is not None:
            request.get_response_sender().send(refusal, flags=final_flag())


class TensorSink:
    """The responses to one request of a decoupled model, from named arrays."""

    def __init__(self, request: Any, trace: RequestTrace | None = None) -> None:
        self._sender = request.get_response_sender()
        self._trace = trace
        self.is_cancelled = self._sender.is_cancelled

    def send(self, tensors: Mapping[str, npt.NDArray[np.generic]], *, is_final: bool) -> None:
        """One response."""
        response = pb_utils.InferenceResponse([pb_utils.Tensor(*named) for named in tensors.items()])
        if is_final and self._trace is not None:
            self._trace.end()  # before its client has it, whose own span ends then
        self._sender.send(response, flags=final_flag() if is_final else 0)

    def fail(self, error: ServingError) -> None:
        """The last response, instead of a final one."""
        if self._trace is not None:
            self._trace.end(error)
        self._sender.send(error_response(error), flags=final_flag())


def release_folder(args: Mapping[str, str]) -> Path:
    """The version folder of the model that Triton initializes with `args`."""
    return Path(args["model_repository"]) / args["model_version"]


def engine_name(args: Mapping[str, str], *, step: str) -> str:
    """Of the engine that serves the model that Triton initializes with `args`.

    Args:
        step: which model of upstream's it is, whatever stands before its name.
    """
    return named_engine(prefix_of(args["model_name"], step), args["model_version"])


def final_flag() -> int:
    """Marks the last response of a decoupled request."""
    return int(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
