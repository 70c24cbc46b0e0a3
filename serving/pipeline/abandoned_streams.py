# SPDX-License-Identifier: Apache-2.0
"""The check for abandoned streams: the engine step asks `postprocessing` which streams nobody reads any more.

It runs inside Triton. `StreamCheck` has the question.
"""

import numpy as np
import triton_python_backend_utils as pb_utils

from serving.requests.stream_state import StreamCheck, keys_decoder, pack
from trireme.base.errors import ServerError


def find_abandoned(check: StreamCheck, *, model: str, version: str) -> list[int]:
    """Return the keys of streams that did not get the chunks that were sent to them.

    Wait until `postprocessing` has answered, behind the chunks that were sent to it before.

    Args:
        check: the streams to ask for, with the number of chunks sent to each.
        model: the name in Triton of the detokenizer that takes this engine's chunks.
        version: the version of that model. Without a version the newest release would answer for streams that it has
            never seen.

    Raises:
        ServerError: postprocessing does not answer.
    """
    one = np.ones((1, 1), dtype=np.int32)
    inputs = {"TOKENS_BATCH": one[np.newaxis], "STREAM_STATE": pack(check)}
    request = pb_utils.InferenceRequest(
        model_name=model,
        model_version=int(version),
        requested_output_names=["OUTPUT"],
        inputs=[pb_utils.Tensor(*named) for named in inputs.items()],
    )
    response = request.exec()
    error = response.error()
    if error is not None:
        raise ServerError(f"no check of the streams: {error.message()}")
    keys = pb_utils.get_output_tensor_by_name(response, "OUTPUT")
    assert keys is not None
    return keys_decoder.decode(keys.as_numpy()[0])
