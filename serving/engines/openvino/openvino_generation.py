# SPDX-License-Identifier: Apache-2.0
"""A request of the OpenVINO engine, from the queue to its last token."""

from dataclasses import dataclass, field

from serving.engines.openvino.openvino_drafting import DraftCount
from serving.engines.openvino.openvino_pipeline import KV_BLOCK_TOKENS
from serving.engines.openvino.openvino_shared_blocks import Lineage
from serving.engines.seam.base import GenerationRequest
from serving.engines.seam.request_times import RequestTimes


@dataclass(slots=True, eq=False)
class Generation:
    """A request that waits, or runs in the pipeline with `config`."""

    request: GenerationRequest
    config: object
    output_ids: list[int] = field(default_factory=list)
    times: RequestTimes = field(default_factory=RequestTimes)
    drafts: DraftCount = field(default_factory=DraftCount)
    num_cached_tokens: int | None = None  # prompt tokens cached when the request first began; None: not known
    num_prefill_blocks: int = 0  # blocks that the prefill may still take; 0 once a token has come
    lineage: Lineage | None = None  # known from the first try to begin; None too where nothing is cached

    @property
    def token_ids(self) -> list[int]:
        """Return all tokens so far; given to the pipeline again, they are the prompt."""
        return self.request.input_ids + self.output_ids

    @property
    def num_blocks(self) -> int:
        """Return the KV blocks of all the request's tokens so far."""
        return -(-(len(self.request.input_ids) + len(self.output_ids)) // KV_BLOCK_TOKENS)

    @property
    def can_go_on(self) -> bool:
        """Return whether the request can be given to the pipeline again with its output so far as a part of the prompt.

        A guide and these penalties look at what was generated, and the pipeline no longer knows which tokens that were.
        """
        sampling = self.request.sampling
        looks_back = sampling.presence_penalty or sampling.frequency_penalty or sampling.guide_type is not None
        return not (self.output_ids and looks_back)
