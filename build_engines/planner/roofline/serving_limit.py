# SPDX-License-Identifier: Apache-2.0
"""The limit of the Python path around an engine: responses a second of one server, measured, not predicted.

A stream has at most one response for `max_chunk_delay_ms`, or one a token where tokens come slower. So many slow
streams are bound by responses, and few fast ones are not. Above the limit tokens that are there at the same time leave
in one response: of 12,000 tokens/s offered, 11,800 left at 1.14 a response in the result below. So the limit is shown
beside what the engines make, and does not decide between them.
"""

from dataclasses import dataclass

# benchmarks/results/responses_2026-11-21.json: an engine that costs nothing behind the whole ensemble, two cores of a
# server CPU, clients on the same two, before responses went past Triton. A host with more cores carries more: state
# what was measured there.
MEASURED_RESPONSES_PER_S = 9300.0

# benchmarks/results/request_cost_ways_2026-11-28.json, past Triton: microseconds of a core by the number of streams at
# once, (of a request, of each further response), all processes of a server together. One step of the engine wakes all
# processes once, so a response costs less among more of them; beyond the last row nobody measured.
MEASURED_CORE_US = {4: (2716.0, 924.0), 16: (2655.0, 314.0), 64: (2617.0, 86.0)}


@dataclass(frozen=True)
class ServingNeed:
    """The work of the server of one replica."""

    responses_per_s: float
    cores: float  # by what a request and a response cost where it was measured
    num_streams: int  # at which the cost of a response was measured
    limit_responses_per_s: float

    @property
    def is_over(self) -> bool:
        """Return True if it is more than a host carries with a token in each response."""
        return self.responses_per_s > self.limit_responses_per_s


@dataclass(frozen=True)
class ServingLimit:
    """The limit of one server, which serves one replica."""

    responses_per_s: float = MEASURED_RESPONSES_PER_S
    max_chunk_delay_ms: float = 10.0

    def tokens_per_s(self, tpot_ms: float) -> float:
        """Return the most tokens/s that go out when each stream gets a token every `tpot_ms`."""
        return self.responses_per_s * self._tokens_per_response(tpot_ms)

    def need(self, tokens_per_s: float, tpot_ms: float, *, osl: int, batch_size: float) -> ServingNeed:
        """Return what a replica that makes `tokens_per_s` asks of its server."""
        responses_per_s = tokens_per_s / self._tokens_per_response(tpot_ms)
        num_streams = max((size for size in MEASURED_CORE_US if size <= batch_size), default=min(MEASURED_CORE_US))
        request_us, response_us = MEASURED_CORE_US[num_streams]
        cores = (tokens_per_s / osl * request_us + responses_per_s * response_us) / 1e6
        return ServingNeed(responses_per_s, cores, num_streams, self.responses_per_s)

    def _tokens_per_response(self, tpot_ms: float) -> float:
        return max(1.0, self.max_chunk_delay_ms / tpot_ms)
