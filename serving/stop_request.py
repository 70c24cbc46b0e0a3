# SPDX-License-Identifier: Apache-2.0
"""From inside Triton: the contract's stop request to the engine step, named by stream and not by the client's id.

An ensemble whose client has gone tells only the step behind the engine, never the engine step itself.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.stream_state import StreamContext, pack

# One thread: the caller must not wait for the engine, and stop requests are rare and short.
_sender = ThreadPoolExecutor(1, thread_name_prefix="stop-request")


def send_stop_request(stream_key: int) -> None:
    """Ask the engine step to end one stream; returns at once."""
    _sender.submit(_send, stream_key)


def _send(stream_key: int) -> None:
    one = np.ones((1, 1), dtype=np.int32)
    inputs = {
        "input_ids": one,
        "input_lengths": one,
        "request_output_len": one,
        "stop": np.ones((1, 1), dtype=np.bool_),
        "stream_context": pack(StreamContext(stream_key)),
    }
    request = pb_utils.InferenceRequest(
        model_name="tensorrt_llm",
        requested_output_names=["sequence_length"],
        inputs=[pb_utils.Tensor(*named) for named in inputs.items()],
    )
    for _ in request.exec(decoupled=True):
        pass
