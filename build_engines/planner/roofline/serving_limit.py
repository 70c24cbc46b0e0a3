# SPDX-License-Identifier: Apache-2.0
"""The limit of the Python path around an engine: responses a second of one server, measured, not predicted.

A stream has at most one response for `max_chunk_delay_ms`, or one a token where tokens come slower. So many slow
streams are bound by responses, and few fast ones are not.
"""

from dataclasses import dataclass

# benchmarks/results/responses_2026-11-21.json: an engine that costs nothing behind the whole ensemble, two cores of a
# server CPU, clients on the same two. A host with more cores carries more: state what was measured there.
MEASURED_RESPONSES_PER_S = 9300.0


@dataclass(frozen=True)
class ServingLimit:
    """The limit of one server, which serves one replica."""

    responses_per_s: float = MEASURED_RESPONSES_PER_S
    max_chunk_delay_ms: float = 10.0

    def tokens_per_s(self, tpot_ms: float) -> float:
        """Return the most tokens/s that go out when each stream gets a token every `tpot_ms`."""
        return self.responses_per_s * max(1.0, self.max_chunk_delay_ms / tpot_ms)
