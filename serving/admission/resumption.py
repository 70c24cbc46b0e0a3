# SPDX-License-Identifier: Apache-2.0
"""Resumption of a preempted request: which requests can be resumed, and what the engine is given then."""

from serving.admission.queued_request import QueuedRequest
from serving.engines.seam.base import GenerationRequest
from serving.engines.seam.continuation import continued, first_inexact


def is_resumable(request: GenerationRequest) -> bool:
    """Return whether a request goes on exactly where it was stopped, when its output is put behind its prompt."""
    sampling = request.sampling
    return first_inexact(sampling) is None and (sampling.seed is None or sampling.is_greedy)


def resumed(queued: QueuedRequest, key: int) -> GenerationRequest:
    """Return the rest of a preempted request, as a request of its own under `key`."""
    return continued(queued.request, queued.output_ids, key=key)
