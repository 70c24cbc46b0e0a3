# SPDX-License-Identifier: Apache-2.0
"""From inside Triton: the engine step asks `postprocessing` which streams are not read any more; see `Census`."""

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.requests.stream_state import Census, keys_decoder, pack
from trireme.base.errors import ServerError


def take_census(census: Census, *, model: str, version: str) -> list[int]:
    """The keys of streams that did not get the chunks that were sent to them; waits for the chunks in between.

    Args:
        model: the detokenizer that this engine's chunks go to, by its name in Triton.
        version: of it. Asked without one, the newest release's would answer for streams that it has never seen.

    Raises:
        ServerError: postprocessing does not answer.
    """
    one = np.ones((1, 1), dtype=np.int32)
    inputs = {"TOKENS_BATCH": one[np.newaxis], "STREAM_STATE": pack(census)}
    request = pb_utils.InferenceRequest(
        model_name=model,
        model_version=int(version),
        requested_output_names=["OUTPUT"],
        inputs=[pb_utils.Tensor(*named) for named in inputs.items()],
    )
    response = request.exec()
    error = response.error()
    if error is not None:
        raise ServerError(f"no census of the streams: {error.message()}")
    keys = pb_utils.get_output_tensor_by_name(response, "OUTPUT")
    assert keys is not None
    return keys_decoder.decode(keys.as_numpy()[0])
