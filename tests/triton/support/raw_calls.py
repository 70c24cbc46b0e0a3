# SPDX-License-Identifier: Apache-2.0
"""Requests as an upstream client makes them: tritonclient's own API, arrays by tensor name, any model."""

import queue
from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tritonclient.grpc as grpcclient
from tritonclient.utils import np_to_triton_dtype

Array = npt.NDArray[Any]  # so that a test may read whatever comes

# The types of what tests send; what is not here is a BOOL.
_DTYPES: dict[str, npt.DTypeLike] = {
    **dict.fromkeys(("text_input", "messages", "stop_words", "bad_words", "QUERY", "STOP_WORDS_DICT"), np.object_),
    **dict.fromkeys(("max_tokens", "request_output_len", "REQUEST_OUTPUT_LEN", "min_tokens"), np.int32),
    **dict.fromkeys(("input_ids", "input_lengths", "end_id", "prompt_vocab_size"), np.int32),
    **dict.fromkeys(("num_draft_tokens", "top_k", "runtime_top_k", "beam_width", "num_return_sequences"), np.int32),
    **dict.fromkeys(("decoder_text_input", "embedding_bias_words"), np.object_),
    **dict.fromkeys(("guided_decoding_guide_type", "guided_decoding_guide"), np.object_),
    **dict.fromkeys(("embedding_bias_weights",), np.float32),
    **dict.fromkeys(("top_p", "runtime_top_p", "temperature"), np.float32),
    **dict.fromkeys(("repetition_penalty", "presence_penalty", "frequency_penalty"), np.float32),
    **dict.fromkeys(("seed", "random_seed"), np.uint64),
}


def arrays(tensors: Mapping[str, object]) -> dict[str, Array]:
    """Return values, or lists of them, as ``[1, n]`` of their tensor's type; a ready array is sent as it is."""
    return {name: value if isinstance(value, np.ndarray) else _array(name, value) for name, value in tensors.items()}


def _array(name: str, value: object) -> Array:
    values = value if isinstance(value, list) else [value]
    encoded = [item.encode() if isinstance(item, str) else item for item in values]
    return np.array([encoded], dtype=_DTYPES.get(name, np.bool_))


def _infer_input(name: str, data: Array) -> grpcclient.InferInput:
    given = grpcclient.InferInput(name, list(data.shape), np_to_triton_dtype(data.dtype))
    given.set_data_from_numpy(data)
    return given


def infer_inputs(tensors: Mapping[str, Array]) -> list[grpcclient.InferInput]:
    """Return arrays as tritonclient sends them."""
    return [_infer_input(name, data) for name, data in tensors.items()]


class StreamFailed(Exception):
    """The error text of a stream."""


def stream(
    url: str,
    model: str,
    tensors: Mapping[str, object],
    *,
    request_id: str = "",
    parameters: Mapping[str, int | str] | None = None,
    outputs: Sequence[str] | None = None,
    version: str = "",
) -> Generator[dict[str, Array], None, None]:
    """Yield the responses to one request, each as arrays by output name, up to the final one.

    Raises:
        StreamFailed: an error came.
    """
    inputs = infer_inputs(arrays(tensors))
    responses: queue.Queue[tuple[grpcclient.InferResult, Exception]] = queue.Queue()
    with grpcclient.InferenceServerClient(url) as client:
        client.start_stream(lambda result, error: responses.put((result, error)))
        try:
            client.async_stream_infer(
                model,
                inputs,
                outputs=None if outputs is None else [grpcclient.InferRequestedOutput(name) for name in outputs],
                model_version=version,
                request_id=request_id,
                enable_empty_final_response=True,
                parameters=parameters,
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
    """Return the tensors that a caller of `tensorrt_llm` itself sends."""
    required = {"input_ids": input_ids, "input_lengths": len(input_ids), "request_output_len": max_tokens}
    return required | {"streaming": True} | tensors
