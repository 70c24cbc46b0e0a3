# SPDX-License-Identifier: Apache-2.0
"""Requests as an upstream client makes them: tritonclient's own API, arrays by tensor name, any model."""

import queue
from collections.abc import Iterator, Mapping

import numpy as np
import tritonclient.grpc as grpcclient


def array(value: object, datatype: str) -> np.ndarray:
    """``[1, n]`` of a value or a list of them."""
    values = value if isinstance(value, list) else [value]
    dtype = {"INT32": np.int32, "FP32": np.float32, "BOOL": np.bool_, "UINT64": np.uint64, "BYTES": np.object_}[datatype]
    return np.array([[v.encode() if isinstance(v, str) else v for v in values]], dtype=dtype)


DATATYPES = {
    "text_input": "BYTES", "stop_words": "BYTES", "bad_words": "BYTES", "max_tokens": "INT32", "request_output_len": "INT32",
    "input_ids": "INT32", "input_lengths": "INT32", "end_id": "INT32", "top_k": "INT32", "runtime_top_k": "INT32",
    "beam_width": "INT32", "min_tokens": "INT32", "top_p": "FP32", "runtime_top_p": "FP32", "temperature": "FP32",
    "repetition_penalty": "FP32", "seed": "UINT64", "random_seed": "UINT64", "prompt_vocab_size": "INT32",
    "num_return_sequences": "INT32",
}  # fmt: skip


def infer_inputs(tensors: Mapping[str, object]) -> list[grpcclient.InferInput]:
    """Values by name; a ready array is sent as it is."""
    inputs = []
    for name, value in tensors.items():
        datatype = DATATYPES.get(name, "BOOL")
        data = value if isinstance(value, np.ndarray) else array(value, datatype)
        if isinstance(value, np.ndarray):
            datatype = grpcclient._utils.np_to_triton_dtype(data.dtype)
        inputs.append(grpcclient.InferInput(name, list(data.shape), datatype))
        inputs[-1].set_data_from_numpy(data)
    return inputs


class StreamFailed(Exception):
    """The error text of a stream."""


def stream(url: str, model: str, tensors: Mapping[str, object], *, request_id: str = "") -> Iterator[dict[str, np.ndarray]]:
    """The responses to one request, each as arrays by output name, up to the final one.

    Raises:
        StreamFailed: an error came.
    """
    responses: queue.Queue[tuple[grpcclient.InferResult, Exception]] = queue.Queue()
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        try:
            client.async_stream_infer(
                model, infer_inputs(tensors), request_id=request_id, enable_empty_final_response=True
            )
            while True:
                result, error = responses.get(timeout=60)
                if error is not None:
                    raise StreamFailed(str(error))
                response = result.get_response()
                if response.outputs:
                    yield {output.name: result.as_numpy(output.name) for output in response.outputs}
                if response.parameters["triton_final_response"].bool_param:
                    return
        finally:
            client.stop_stream(cancel_requests=True)


def engine_request(input_ids: list[int], max_tokens: int, **tensors: object) -> dict[str, object]:
    """What a caller of `tensorrt_llm` itself sends."""
    required = {"input_ids": input_ids, "input_lengths": len(input_ids), "request_output_len": max_tokens}
    return required | {"streaming": True} | tensors
