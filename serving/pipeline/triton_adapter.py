# SPDX-License-Identifier: Apache-2.0
"""The Triton side of every adapter: the folder of its release, and the wrapper that turns errors into Triton's errors.

Each error fails one request, and no error shows a traceback to a caller.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils

from ensemble_configs.render.tensors import outputs_of
from ensemble_configs.spec.model_names import prefix_of
from serving.engine_process.engine_sources import named_engine
from serving.pipeline.direct.direct_replies import DIRECT_REPLIES
from serving.pipeline.direct.direct_sink import DirectSink
from serving.pipeline.late_refusal import error_for_client
from serving.pipeline.request_origin import RequestOrigin
from serving.pipeline.whole_response import WholeResponse
from serving.requests.request_parameters import Parameters, stream_name_of
from serving.requests.stream_message import StreamMessages
from serving.requests.tensor_sink import TensorSink
from serving.telemetry.request_observer import UNTRACED, RequestObserver
from serving.telemetry.request_tracer import RequestTracer
from trireme.base.errors import ServingError

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
    """Return Triton's form of an error: the error's own text, with its token, and the nearest code."""
    code = _TRITON_CODES.get(error.code, "INTERNAL")
    return pb_utils.TritonError(str(error), getattr(pb_utils.TritonError, code))


def error_response(error: ServingError) -> Any:
    """Return a response that holds nothing but the error."""
    return pb_utils.InferenceResponse(output_tensors=[], error=triton_error(error))


def guarded(respond: Callable[[Any], Any], request: Any, observer: RequestObserver = UNTRACED) -> Any:
    """Return `respond(request)`, or an error response where it raises."""
    try:
        return respond(request)
    except Exception as exc:
        facts = {**observer.told, "is_of_request": True}
        error = error_for_client(exc, f"unexpected error in request {request.request_id()!r}", log=_log, facts=facts)
    observer.end(error)
    return error_response(error)


def start_each(start: Callable[..., Any], requests: list[Any], tracer: RequestTracer) -> None:
    """Call `start(request, observer=...)` for each request; an error that it raises is the only response.

    A refusal that cannot be sent does not keep later requests from being started: Triton would wait for them for ever.
    """
    for request in requests:
        observer = tracer.begin(request)
        refusal = guarded(partial(start, observer=observer), request, observer)
        if refusal is None:
            continue
        try:
            request.get_response_sender().send(refusal, flags=final_flag())
        except Exception:
            _log.exception("the refusal of request %r could not be sent", request.request_id())


class Responses:
    """The kind of responses that a loaded model gives, by its config.

    Args:
        args: arguments of the model's `initialize`.
        step: upstream's name of the model, without a prefix.
    """

    def __init__(self, args: Mapping[str, str], *, step: str) -> None:
        policy = json.loads(args["model_config"]).get("model_transaction_policy", {})
        self._is_decoupled = bool(policy.get("decoupled", False))
        self._all_outputs = frozenset(name for name, _ in outputs_of(step))
        self._model, self._version = args["model_name"], args["model_version"]

    def origin(self, request: Any, parameters: Parameters, observer: RequestObserver) -> RequestOrigin:
        """Return the origin of a request with these parameters."""
        name = stream_name_of(parameters)
        way = DIRECT_REPLIES.way_of(name, self._model) if self._is_decoupled else None
        return RequestOrigin(request.request_id(), name, request.timeout(), way, observer)

    def sink(self, request: Any, origin: RequestOrigin) -> TensorSink:
        """Return the sink for the responses to a request with this origin."""
        sink = _SenderSink(request, origin.observer, self._all_outputs)
        if not self._is_decoupled:
            return WholeResponse(sink)
        if origin.way is None:
            return sink
        return DirectSink(
            sink, origin.way, origin.stream_name, StreamMessages(self._model, self._version, origin.request_id)
        )


class _SenderSink:
    """The sink that sends the responses to one request as they come: `execute` has returned before.

    A model that is not decoupled may respond in this way, too, once for each request;
    `tests/triton/pipeline/test_unary.py` shows that such requests run side by side.
    """

    takes_one = False

    def __init__(self, request: Any, observer: RequestObserver, all_outputs: frozenset[str]) -> None:
        self.names = frozenset(request.requested_output_names())
        self._all_outputs = all_outputs
        self._sender = request.get_response_sender()
        self._observer = observer
        self.is_cancelled = self._sender.is_cancelled

    def named_outputs(self) -> Collection[str]:
        """Return the outputs that the client named; empty where Triton or a graph named all outputs for it."""
        return () if self.names >= self._all_outputs or "stream_state" in self.names else self.names

    def send(self, tensors: Mapping[str, npt.NDArray[np.generic]], *, is_final: bool) -> None:
        """Send one response, with only the outputs that the request wants.

        The stub would drop all other outputs, and up to Triton 2.52 it frees their arrays without Python's lock: with
        tens of streams the process of the model dies within seconds (python_backend pull request 390).
        """
        wanted = [pb_utils.Tensor(name, tensor) for name, tensor in tensors.items() if name in self.names]
        response = pb_utils.InferenceResponse(wanted)
        if is_final:
            self._observer.end()  # before its client has it, whose own span ends then
        self._sender.send(response, flags=final_flag() if is_final else 0)

    def fail(self, error: ServingError) -> None:
        """Send an error as the last response, instead of a final response."""
        self._observer.end(error)
        self._sender.send(error_response(error), flags=final_flag())


def release_folder(args: Mapping[str, str]) -> Path:
    """Return the version folder of the model that Triton initializes with `args`."""
    return Path(args["model_repository"]) / args["model_version"]


def engine_name(args: Mapping[str, str], *, step: str) -> str:
    """Return the name of the engine that serves the model that Triton initializes with `args`.

    Args:
        args: arguments of the model's `initialize`.
        step: upstream's name of the model, without a prefix.
    """
    return named_engine(prefix_of(args["model_name"], step), args["model_version"])


def final_flag() -> int:
    """Return the flag that marks the last response of a decoupled request."""
    return int(pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
