# SPDX-License-Identifier: Apache-2.0
"""Questions and findings of a benchmark run."""

import itertools
import statistics
from collections.abc import Sequence

import msgspec

from clients.infer_messages import GenerateRequest
from trireme.base.sample_statistics import percentile


def exact_stream(
    prompt: str,
    num_tokens: int,
    *,
    return_num_output_tokens: bool | None = None,
    return_finish_reason: bool | None = None,
) -> GenerateRequest:
    """Return a greedy stream of exactly `num_tokens` tokens."""
    return GenerateRequest(
        text_input=prompt,
        max_tokens=num_tokens,
        min_tokens=num_tokens,
        end_id=-1,
        stream=True,
        exclude_input_in_output=True,
        return_num_output_tokens=return_num_output_tokens,
        return_finish_reason=return_finish_reason,
    )


class Ask(msgspec.Struct, frozen=True):
    """The question to every side of a benchmark."""

    prompts: list[str]
    output_tokens: int
    num_users: int | None = None  # who ask at a time; None: all prompts at once


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one side with one `Ask`."""

    tokens_per_s: float  # all output tokens over the time from the first request to the last token
    ttft_ms: float  # median over the requests
    itl_p50_ms: float  # of the gaps between the responses of a request, pooled over requests
    itl_p99_ms: float
    tokens_per_response: float
    client_cpu_us: float = 0.0  # of each response; zero where there is no client

    @classmethod
    def of(cls, arrivals_s: Sequence[Sequence[float]], *, num_tokens: int, client_cpu_s: float = 0.0) -> "Run":
        """Return the run of these arrivals.

        Args:
            arrivals_s: of each request's responses, seconds since the requests were sent; none is empty.
        """
        gaps_ms = [1000 * (late - early) for times in arrivals_s for early, late in itertools.pairwise(times)]
        num_responses = sum(len(times) for times in arrivals_s)
        return cls(
            tokens_per_s=num_tokens / max(times[-1] for times in arrivals_s),
            ttft_ms=1000 * statistics.median(times[0] for times in arrivals_s),
            itl_p50_ms=percentile(gaps_ms, 50) if gaps_ms else 0.0,
            itl_p99_ms=percentile(gaps_ms, 99) if gaps_ms else 0.0,
            tokens_per_response=num_tokens / num_responses,
            client_cpu_us=1e6 * client_cpu_s / num_responses,
        )
