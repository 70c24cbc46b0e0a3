# SPDX-License-Identifier: Apache-2.0
"""The messages between a server and one that computes prompts for it: a request for prefill alone, and its answer."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from ensemble_configs.render.tensors import inputs_of
from serving.engines.seam.base import FinishReason
from serving.requests.prompt_batch import Row
from trireme.base.errors import ServerError

_ANSWER, _FINISH_REASON = "context_phase_params", "finish_reason"
_INPUTS = dict(inputs_of("tensorrt_llm"))
# What says how an answer comes back; the prefill has none but its one token.
_OF_ANSWERS = frozenset(
    name
    for name, row in _INPUTS.items()
    if row.field.startswith("return_")
    or row.field in ("is_streaming", "stream_context", "stop", "num_return_sequences")
)


def prefill_message(row: Row, *, model: str, version: str, request_id: str) -> Any:
    """Return the `ModelInferRequest` that asks a server to compute a prompt and to hand its KV cache over.

    Args:
        row: tensors of one prompt, by the names of `tensorrt_llm`'s inputs and of those that `tensorrt_llm_bls` adds.
        model: name of the model that is asked.
        version: its version, the number of the release.
        request_id: name of the request in the other server's log.
    """
    message = service_pb2.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    message.parameters["request_type"].string_param = "context_only"
    for name, array in row.items():
        if name in _INPUTS and name not in _OF_ANSWERS:
            _add(message, name, array)
    _add(message, "return_finish_reason", np.ones((1, 1), np.bool_))
    for name in (_ANSWER, _FINISH_REASON):
        message.outputs.add(name=name)
    return message


class Answer(NamedTuple):
    """The answer to a request for prefill alone.

    Attributes:
        phase: what it hands over.
        has_ended: the prompt's one token has ended the answer. TensorRT-LLM up to 1.2 would go on behind that token
            (github.com/NVIDIA/TensorRT-LLM/pull/16691); vLLM samples the token again.
    """

    phase: bytes
    has_ended: bool


def answer_of(response: Any) -> Answer | None:
    """Return the answer; None: this response of the stream has none.

    Raises:
        ServerError: the request failed there; the text is the other server's.
    """
    if response.error_message:
        raise ServerError(response.error_message)
    found = response.infer_response
    outputs = dict(zip((output.name for output in found.outputs), found.raw_output_contents, strict=True))
    if not outputs.get(_ANSWER):
        return None
    return Answer(bytes(outputs[_ANSWER]), outputs.get(_FINISH_REASON, b"")[4:] == FinishReason.STOP.encode())


def _add(message: Any, name: str, array: npt.NDArray[np.generic]) -> None:
    row = _INPUTS[name]
    shaped = array.reshape(1, 1) if row.is_scalar or row.dims == (1,) else array
    message.inputs.add(name=name, datatype=np_to_triton_dtype(shaped.dtype), shape=shaped.shape)
    packed = serialize_byte_tensor(shaped).item() if shaped.dtype == np.object_ else shaped.tobytes()
    message.raw_input_contents.append(packed)
