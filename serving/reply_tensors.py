# SPDX-License-Identifier: Apache-2.0
"""A reply as the contract's output tensors; what was not asked for is absent."""

import numpy as np
import numpy.typing as npt

from serving.engines.base import PerfMetrics
from serving.running_request import Reply
from serving.stream_state import pack


def reply_tensors(reply: Reply) -> dict[str, npt.NDArray[np.generic]]:
    """``output_ids [1, 1, n]``, ``sequence_length [1, 1]`` and what was asked for.

    That is ``output_log_probs [1, 1, generated]``, the rest ``[1, 1]`` each.

    Inside the ensemble there is no `sequence_length`, for every tensor of a response costs 15 microseconds.
    """
    tensors: dict[str, npt.NDArray[np.generic]] = {}
    tensors["output_ids"] = np.array([[reply.token_ids]], dtype=np.int32)
    if reply.stream_state is None:
        tensors["sequence_length"] = np.array([[len(reply.token_ids)]], dtype=np.int32)
    else:
        tensors["stream_state"] = pack(reply.stream_state)
    return tensors | result_tensors(reply)


def text_tensors(reply: Reply, text: bytes) -> dict[str, npt.NDArray[np.generic]]:
    """``text_output [1]`` and what was asked for. Args: `text` is UTF-8."""
    return {"text_output": np.array([text], dtype=np.object_), **result_tensors(reply)}


def result_tensors(reply: Reply) -> dict[str, npt.NDArray[np.generic]]:
    """What was asked for beside the answer, ``[1, 1]`` each."""
    tensors: dict[str, npt.NDArray[np.generic]] = {}
    if reply.num_input_tokens is not None:
        tensors["num_input_tokens"] = np.array([[reply.num_input_tokens]], dtype=np.int32)
    if reply.num_output_tokens is not None:
        tensors["num_output_tokens"] = np.array([[reply.num_output_tokens]], dtype=np.int32)
    if reply.log_probs is not None:
        tensors["output_log_probs"] = np.array([[reply.log_probs]], dtype=np.float32)
        tensors["cum_log_probs"] = np.array([[reply.cum_log_prob]], dtype=np.float32)
    if reply.sequence_index is not None:
        tensors["sequence_index"] = np.array([[reply.sequence_index]], dtype=np.int32)
    if reply.perf is not None:
        tensors |= _perf_tensors(reply.perf)
    if reply.finish_reason is not None:
        tensors["finish_reason"] = np.array([[reply.finish_reason.encode()]], dtype=np.object_)
    return tensors


def _perf_tensors(perf: PerfMetrics) -> dict[str, npt.NDArray[np.generic]]:
    numbers = {name: getattr(perf, name) for name in PerfMetrics.__struct_fields__}
    tensors: dict[str, npt.NDArray[np.generic]] = {
        name: np.array([[number]], dtype=np.int64 if name.endswith("_ns") else np.int32)
        for name, number in numbers.items()
        if number is not None
    }
    if perf.total_draft_tokens is not None and perf.total_accepted_draft_tokens is not None:
        rate = perf.total_accepted_draft_tokens / max(perf.total_draft_tokens, 1)
        tensors["acceptance_rate"] = np.array([[rate]], dtype=np.float32)
    return tensors
