# SPDX-License-Identifier: Apache-2.0
"""Resumption of a preempted request: which requests can be resumed, and what the engine is given then."""

import msgspec

from serving.admission.queued_request import QueuedRequest
from serving.engines.seam.base import GenerationRequest, SamplingParams

_DEFAULTS = {
    field.name: field.default
    for field in msgspec.structs.fields(SamplingParams)
    if field.default is not msgspec.NODEFAULT
}
_RESUMABLE = frozenset(
    {"max_tokens", "temperature", "top_k", "top_p", "seed", "end_id", "return_log_probs", "embedding_bias"}
)


def is_resumable(request: GenerationRequest) -> bool:
    """Return whether a request goes on exactly where it was stopped, when its output is put behind its prompt.

    What looks at the output alone (penalties, guides, seeds, the least number of tokens) does not, and neither does
    what is told once or at the end.
    """
    sampling = request.sampling
    asked = {name for name in sampling.__struct_fields__ if getattr(sampling, name) != _DEFAULTS.get(name)}
    return asked <= _RESUMABLE and not (sampling.seed is not None and not sampling.is_greedy)


def resumed(queued: QueuedRequest, key: int) -> GenerationRequest:
    """Return the rest of a preempted request, as a request of its own under `key`."""
    request, num_output = queued.request, len(queued.output_ids)
    sampling = msgspec.structs.replace(request.sampling, max_tokens=request.sampling.max_tokens - num_output)
    return msgspec.structs.replace(
        request,
        key=key,
        input_ids=request.input_ids + queued.output_ids,
        sampling=sampling,
        num_output_ids=num_output,
    )
