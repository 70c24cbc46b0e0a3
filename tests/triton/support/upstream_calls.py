# SPDX-License-Identifier: Apache-2.0
"""Tensors and calls as upstream's clients make them: over a stream half-closed at once, by ModelInfer, over HTTP."""

import queue
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from raw_calls import Array, infer_inputs
from running_server import RunningServer
from tritonclient.utils import InferenceServerException, np_to_triton_dtype


def one(value: object, dtype: Any) -> Array:
    """Return a value as ``[1, 1]``."""
    array: Array = np.array([[value]], dtype=dtype)
    return array


def listed(*values: object, dtype: Any = object) -> Array:
    """Return values as ``[1, n]``."""
    return np.array([values], dtype=dtype)


TRUE = one(True, bool)


def over_stream(
    server: RunningServer,
    model: str,
    tensors: Mapping[str, Array],
    outputs: Sequence[str] = (),
    *,
    request_id: str = "",
) -> list[Any]:
    """Return results and errors in their order; the stream is half-closed once the request is sent."""
    received: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(server.url) as client:
        client.start_stream(lambda result, error: received.put(error if error else result))
        named = [grpcclient.InferRequestedOutput(name) for name in outputs] or None
        client.async_stream_infer(model, infer_inputs(tensors), outputs=named, request_id=request_id)
        client.stop_stream()
    return [received.get() for _ in range(received.qsize())]


def infer(
    server: RunningServer,
    model: str,
    tensors: Mapping[str, Array],
    outputs: Sequence[str] = (),
    *,
    protocol: str = "grpc",
) -> Any:
    """Return the result; a refusal is raised, which most of these clients do not catch."""
    util: Any = grpcclient if protocol == "grpc" else httpclient
    url = server.url if protocol == "grpc" else f"127.0.0.1:{server.http_port}"
    named = [util.InferRequestedOutput(name) for name in outputs] or None
    inputs = []
    for name, data in tensors.items():
        given = util.InferInput(name, list(data.shape), np_to_triton_dtype(data.dtype))
        inputs.append(given.set_data_from_numpy(data))
    with util.InferenceServerClient(url) as client:
        return client.infer(model, inputs, outputs=named, request_id="1")


def infer_or_error(server: RunningServer, model: str, tensors: Mapping[str, Array], outputs: Sequence[str] = ()) -> Any:
    """Return the result, or the error."""
    try:
        return infer(server, model, tensors, outputs)
    except InferenceServerException as exc:
        return exc
