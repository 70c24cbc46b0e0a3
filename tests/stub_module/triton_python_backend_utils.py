# SPDX-License-Identifier: Apache-2.0
"""The module that Triton's Python stub gives a model, as far as our adapters use it, so that they run without Triton.

Small and real: it keeps the stub's rules (a sender takes nothing after its final response, a tensor has a type that
Triton knows) and breaks loudly where the stub would corrupt the server. `tests/triton/pipeline/test_fake_stub.py` sends
the same requests through this and through the real server.

Source: python_backend, src/pb_stub.cc, response_sender.cc, pb_tensor.cc; the constants and `get_output_tensor_by_name`
are in resources/triton_python_backend_utils.py.
"""

import contextlib
import json
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

Array = npt.NDArray[np.generic]

_DTYPES = (np.bool_, np.uint8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.object_)


class Tensor:
    """A named array."""

    def __init__(self, name: str, array: Array) -> None:
        if array.dtype not in _DTYPES:
            raise TypeError(f"tensor {name!r}: no Triton type for {array.dtype}")
        if array.dtype == np.object_ and not all(isinstance(item, bytes | str) for item in array.flat):
            raise TypeError(f"tensor {name!r}: an object array holds bytes or text")
        self._name = name
        self._array = array

    def name(self) -> str:
        """Return the tensor's name."""
        return self._name

    def as_numpy(self) -> Array:
        """Return the tensor's array."""
        return self._array


class TritonError:
    """An error with one of Triton's codes."""

    UNKNOWN: ClassVar = 0
    INTERNAL: ClassVar = 1
    NOT_FOUND: ClassVar = 2
    INVALID_ARG: ClassVar = 3
    UNAVAILABLE: ClassVar = 4
    UNSUPPORTED: ClassVar = 5
    ALREADY_EXISTS: ClassVar = 6
    CANCELLED: ClassVar = 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = message
        self._code = code

    def code(self) -> int:
        """Return one of the codes above."""
        return self._code

    def message(self) -> str:
        """Return the error's text."""
        return self._message


class InferenceResponse:
    """Output tensors, or an error."""

    def __init__(self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None) -> None:
        self._output_tensors = list(output_tensors)
        self._error = error

    def output_tensors(self) -> list[Tensor]:
        """Return the output tensors."""
        return self._output_tensors

    def has_error(self) -> bool:
        """Return whether the response is an error."""
        return self._error is not None

    def error(self) -> TritonError | None:
        """Return the error; None where the response has outputs."""
        return self._error


class ResponseSender:
    """A sender of the responses to one request; a test reads them with `wait`.

    Attributes:
        on_response: called with each response before `send` returns, as the server hands them on.
        is_client_gone: what `is_cancelled` says.

    Args:
        wanted: the outputs that the request asks for.
    """

    def __init__(self, wanted: Sequence[str] = ()) -> None:
        self._wanted = frozenset(wanted)
        self.responses: list[InferenceResponse] = []
        self.on_response: Callable[[InferenceResponse], None] = lambda _: None
        self.is_client_gone = False
        self._is_closed = threading.Event()

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send a response; with the final flag the last one."""
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise RuntimeError("Unable to send response. Unsupported flag provided.")
        if flags == 0 and response is None:
            raise RuntimeError("Inference Response object must be provided when the response flags is set to zero.")
        if self._is_closed.is_set():
            raise RuntimeError("Unable to send response. Response sender has been closed.")
        if response is not None:
            # Up to 24.11 the stub frees the array of such an output without Python's lock: PruneOutputTensors called by
            # ResponseSender::Send, ~PbTensor (python_backend pull request 390).
            unwanted = {tensor.name() for tensor in response.output_tensors()} - self._wanted
            assert not unwanted, f"{unwanted} were not asked for; to drop them there corrupts Python's memory"
            self.responses.append(response)
            self.on_response(response)
        if flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL:
            self._is_closed.set()

    def is_cancelled(self) -> bool:
        """Return whether the client has gone."""
        # The server has freed what it would look at: python_be.cc, ResponseSendDecoupled, response_factory_deleter.
        assert not self._is_closed.is_set(), "is_cancelled() after the final response reads freed memory of the server"
        return self.is_client_gone

    def wait(self, timeout_s: float = 20.0) -> list[InferenceResponse]:
        """Return every response, once the final one has been sent."""
        assert self._is_closed.wait(timeout_s), f"no final response after {len(self.responses)} others"
        return self.responses


class Model(Protocol):
    """A loaded model that answers each request with one response, for `InferenceRequest.exec`."""

    def execute(self, requests: list["InferenceRequest"]) -> list[InferenceResponse]:
        """Return the responses, in the order of the requests."""


class InferenceRequest:
    """A request: one that a model is handed, or one that it makes itself (BLS)."""

    # What a server would have loaded; a test fills it. A version of a model has the key "model/version".
    loaded_models: ClassVar[dict[str, Model]] = {}

    def __init__(
        self,
        *,
        inputs: Sequence[Tensor],
        requested_output_names: Sequence[str],
        model_name: str,
        model_version: int = -1,
        request_id: str = "",
        parameters: Mapping[str, object] = MappingProxyType({}),
        timeout: int = 0,
    ) -> None:
        self._timeout = timeout
        self._inputs = list(inputs)
        self._requested_output_names = list(requested_output_names)
        self._model_name = model_name
        self._model_version = model_version
        self._request_id = request_id
        self._parameters = json.dumps(dict(parameters))
        self._sender = ResponseSender(requested_output_names)

    def inputs(self) -> list[Tensor]:
        """Return the tensors that were sent; an optional tensor that was not sent is not among them."""
        return self._inputs

    def is_cancelled(self) -> bool:
        """Return whether the client of this request has gone; this fake's never goes while it waits."""
        return False

    def request_id(self) -> str:
        """Return the client's id of the request, which may be empty."""
        return self._request_id

    def parameters(self) -> str:
        """Return the parameters that the client sent, as a JSON object."""
        return self._parameters

    def timeout(self) -> int:
        """Return the client's timeout in microseconds; 0: none."""
        return self._timeout

    def requested_output_names(self) -> list[str]:
        """Return the outputs that the client named, or every output of the model where it named none."""
        return self._requested_output_names

    def get_response_sender(self) -> ResponseSender:
        """Return the sender of this request, the same object each time."""
        return self._sender

    def exec(self) -> InferenceResponse:
        """Ask another model; its response has the outputs that were asked for."""
        of_version = self.loaded_models.get(f"{self._model_name}/{self._model_version}")
        model = of_version or self.loaded_models.get(self._model_name)
        if model is None:
            return InferenceResponse(error=TritonError(f"Model '{self._model_name}' is not ready."))
        [response] = model.execute([self])
        if response.has_error():
            return response
        wanted = self._requested_output_names
        return InferenceResponse([tensor for tensor in response.output_tensors() if tensor.name() in wanted])


class Metric:
    """A gauge, counter or histogram of a family."""

    def __init__(self, labels: Mapping[str, str], buckets: list[float] | None = None) -> None:
        self.labels = dict(labels)
        self.buckets = buckets
        self.observed: list[float] = []
        self._value = 0.0

    def set(self, value: float) -> None:
        """Set the value that is shown."""
        assert self.buckets is None
        self._value = float(value)

    def increment(self, value: float) -> None:
        """Add a number to the value that is shown."""
        assert self.buckets is None
        assert value >= 0
        self._value += value

    def observe(self, value: float) -> None:
        """Count a value in the histogram."""
        assert self.buckets is not None
        self.observed.append(float(value))

    def value(self) -> float:
        """Return the value that is shown."""
        return self._value


class MetricFamily:
    """The metrics of one name."""

    COUNTER: ClassVar = 0
    GAUGE: ClassVar = 1
    HISTOGRAM: ClassVar = 2
    # What the metrics page would show: the server drops a family that no model holds.
    shown: ClassVar[weakref.WeakSet["MetricFamily"]] = weakref.WeakSet()

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.name, self.description, self.kind = name, description, kind
        self.metrics: list[Metric] = []
        self.shown.add(self)

    def Metric(self, *, labels: Mapping[str, str], buckets: list[float] | None = None) -> Metric:  # noqa: N802  the stub's name
        """Return a new metric; a histogram has the upper bounds of its buckets, ascending."""
        assert (buckets is not None) == (self.kind == self.HISTOGRAM)
        assert buckets is None or buckets == sorted(buckets)
        self.metrics.append(Metric(labels, buckets))
        return self.metrics[-1]


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """Return the output tensor of a name; None where there is none."""
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


# The stub adds these only after it has imported the model (pb_stub.cc, StubSetup and Initialize).
_ADDED_AFTER_IMPORT = ("Tensor", "TritonError", "InferenceResponse", "InferenceRequest", "MetricFamily")


@contextlib.contextmanager
def as_while_a_model_is_imported() -> Iterator[None]:
    """Make this module as a model's own import finds it in the stub: without what is added afterwards."""
    module = vars(sys.modules[__name__])
    missing = {name: module.pop(name) for name in _ADDED_AFTER_IMPORT}
    try:
        yield
    finally:
        module.update(missing)
