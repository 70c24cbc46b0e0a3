# SPDX-License-Identifier: Apache-2.0
"""A reply as the contract's output tensors; a tensor that was not asked for is absent."""

from collections.abc import Sequence

import numpy as np

from serving.engines.seam.base import ExtraOutputs, PerfMetrics
from serving.engines.seam.packed_array import Array
from serving.pipeline.running_request import Reply
from serving.requests.stream_state import pack
from serving.requests.tensor_sink import TensorSink


class TensorReplies:
    """The replies to one request of the engine step, as tensors.

    Args:
        sink: takes the tensors.
    """

    def __init__(self, sink: TensorSink) -> None:
        self._sink = sink
        self.takes_one = sink.takes_one
        self.fail = sink.fail
        self.is_cancelled = sink.is_cancelled
        self.named_outputs = sink.named_outputs

    def send(self, reply: Reply) -> None:
        """Send one reply."""
        self._sink.send(reply_tensors(reply), is_final=reply.is_final)


def reply_tensors(reply: Reply) -> dict[str, Array]:
    """Return ``output_ids [1, beams, n]``, padded with -1, ``sequence_length [1, beams]`` and the results asked for.

    Inside the ensemble one beam has no `sequence_length`, for every tensor of a response costs 15 microseconds.
    """
    tensors: dict[str, Array] = {}
    if reply.beams is None:
        tensors["output_ids"] = np.array([[reply.token_ids]], dtype=np.int32)
    else:
        tensors["output_ids"] = _padded([beam.token_ids for beam in reply.beams], -1, np.int32)
    if reply.beams is not None:
        tensors["sequence_length"] = np.array([[len(beam.token_ids) for beam in reply.beams]], dtype=np.int32)
    elif reply.stream_state is None:
        tensors["sequence_length"] = np.array([[len(reply.token_ids)]], dtype=np.int32)
    if reply.stream_state is not None:
        tensors["stream_state"] = pack(reply.stream_state)
    if reply.extras is not None and reply.extras.context_phase_params is not None:
        tensors["context_phase_params"] = np.frombuffer(reply.extras.context_phase_params, dtype=np.uint8)[np.newaxis]
    return tensors | result_tensors(reply)


def text_tensors(reply: Reply, texts: list[bytes]) -> dict[str, Array]:
    """Return ``text_output [beams]`` from UTF-8 `texts`, and the results asked for."""
    return {"text_output": np.array(texts, dtype=np.object_), **result_tensors(reply)}


def result_tensors(reply: Reply) -> dict[str, Array]:
    """Return the results asked for beside the answer: log probabilities and logits, everything else ``[1, 1]``."""
    tensors: dict[str, Array] = {}
    if reply.num_input_tokens is not None:
        tensors["num_input_tokens"] = np.array([[reply.num_input_tokens]], dtype=np.int32)
    if reply.num_output_tokens is not None:
        tensors["num_output_tokens"] = np.array([[reply.num_output_tokens]], dtype=np.int32)
    if reply.num_cached_tokens is not None:
        tensors["num_cached_tokens"] = np.array([[reply.num_cached_tokens]], dtype=np.int32)
    if reply.log_probs is not None:
        tensors |= _log_prob_tensors(reply)
    if reply.batch_index is not None:
        tensors["batch_index"] = np.array([[reply.batch_index]], dtype=np.int32)
    if reply.sequence_index is not None:
        tensors["sequence_index"] = np.array([[reply.sequence_index]], dtype=np.int32)
    if reply.perf is not None:
        tensors |= _perf_tensors(reply.perf)
    if reply.finish_reason is not None:
        tensors["finish_reason"] = np.array([[reply.finish_reason.encode()]], dtype=np.object_)
    if reply.release is not None:
        tensors["release"] = np.array([[reply.release]], dtype=np.int32)
    if reply.generated_ids is not None:
        tensors["token_ids"] = np.array([reply.generated_ids], dtype=np.int32)
    if reply.extras is not None:
        tensors |= _logit_tensors(reply.extras)
    return tensors


def _log_prob_tensors(reply: Reply) -> dict[str, Array]:
    """Return ``output_log_probs [1, beams, generated]``, padded with 0, and ``cum_log_probs [1, beams]``."""
    if reply.beams is None:
        log_probs = np.array([[reply.log_probs]], dtype=np.float32)
        return {"output_log_probs": log_probs, "cum_log_probs": np.array([[reply.cum_log_prob]], dtype=np.float32)}
    return {
        "output_log_probs": _padded([beam.log_probs or [] for beam in reply.beams], 0.0, np.float32),
        "cum_log_probs": np.array([[beam.cum_log_prob for beam in reply.beams]], dtype=np.float32),
    }


def _logit_tensors(extras: ExtraOutputs) -> dict[str, Array]:
    """Return ``context_logits [1, prompt, vocab]`` and ``generation_logits [1, beams, generated, vocab]``, 0-padded."""
    tensors: dict[str, Array] = {}
    if extras.context_logits is not None:
        tensors["context_logits"] = extras.context_logits.array()[np.newaxis]
    if extras.generation_logits is not None:
        tensors["generation_logits"] = extras.generation_logits.array()[np.newaxis, np.newaxis]
    parts = [beam.generation_logits.array() for beam in extras.beams or [] if beam.generation_logits is not None]
    if parts:
        num_tokens = max(len(part) for part in parts)
        tensors["generation_logits"] = np.stack(
            [np.pad(part, ((0, num_tokens - len(part)), (0, 0))) for part in parts]
        )[np.newaxis]
    return tensors


def _padded(rows: Sequence[Sequence[float]], filler: float, dtype: type[np.generic]) -> Array:
    """Return the rows as ``[1, rows, longest]``, padded with `filler`."""
    padded = np.full((1, len(rows), max(len(row) for row in rows)), filler, dtype=dtype)
    for index, row in enumerate(rows):
        padded[0, index, : len(row)] = row
    return padded


def _perf_tensors(perf: PerfMetrics) -> dict[str, Array]:
    numbers = {name: getattr(perf, name) for name in PerfMetrics.__struct_fields__}
    tensors: dict[str, Array] = {
        name: np.array([[number]], dtype=np.int64 if name.endswith("_ns") else np.int32)
        for name, number in numbers.items()
        if number is not None
    }
    if perf.total_draft_tokens is not None and perf.total_accepted_draft_tokens is not None:
        rate = perf.total_accepted_draft_tokens / max(perf.total_draft_tokens, 1)
        tensors["acceptance_rate"] = np.array([[rate]], dtype=np.float32)
    return tensors
