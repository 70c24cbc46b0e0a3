# SPDX-License-Identifier: Apache-2.0
"""Beam search over the fake logits: the likeliest sequences of a request, one position in each step.

A sequence counts by the sum of its log probabilities, over its length to the power of `length_penalty` once it has
ended. `beam_search_diversity_rate` costs a continuation that much for each better one of the same beam.
"""

from dataclasses import dataclass, field

from serving.engines.seam.base import Beam, FinishReason, SamplingParams
from serving.engines.simulated.fake_logits import FakeTokens, logits_of


@dataclass(slots=True, eq=False)
class _Hypothesis:
    tokens: FakeTokens  # the beam's place among the candidates
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    rank_score: float = 0.0  # the score less the cost of diversity
    is_ended: bool = False  # ended by an end token

    def score(self, length_penalty: float, length: int | None = None) -> float:
        return sum(self.log_probs) / float((length or len(self.token_ids) or 1) ** length_penalty)

    def extended(self, token_id: int, log_prob: float, *, cost: float) -> "_Hypothesis":
        return _Hypothesis(
            self.tokens.fork(token_id, log_prob),
            [*self.token_ids, token_id],
            [*self.log_probs, log_prob],
            [*self.candidates, self.tokens.candidate],
            self.rank_score + log_prob - cost,
        )


class BeamSearch:
    """The search of one request; over when `advance` says so."""

    def __init__(self, tokens: FakeTokens, sampling: SamplingParams, end_ids: frozenset[int]) -> None:
        self._sampling = sampling
        self._end_ids = end_ids
        self._live = [_Hypothesis(tokens)]
        self._ended: list[_Hypothesis] = []

    def advance(self) -> bool:
        """Go on by one position; return True when nothing better can come, or nothing at all."""
        width, rate = self._sampling.beam_width, self._sampling.beam_search_diversity_rate
        options = [
            (one.rank_score + log_prob - rank * rate, one, token_id, log_prob, rank * rate)
            for one in self._live
            for rank, (token_id, log_prob) in enumerate(one.tokens.best(width + len(self._end_ids)))
        ]
        options.sort(key=lambda option: -option[0])
        self._live = []
        for _, one, token_id, log_prob, cost in options:
            if len(self._live) == width:
                break
            longer = one.extended(token_id, log_prob, cost=cost)
            if token_id in self._end_ids and len(longer.token_ids) > self._sampling.min_tokens:
                longer.is_ended = True
                self._ended.append(longer)
            else:
                self._live.append(longer)
        return self._is_over()

    def _is_over(self) -> bool:
        width, penalty = self._sampling.beam_width, self._sampling.length_penalty
        if not self._live or len(self._live[0].token_ids) == self._sampling.max_tokens:
            return True
        if len(self._ended) < width:
            return False
        if self._sampling.early_stopping:
            return True
        worst_kept = sorted((one.score(penalty) for one in self._ended), reverse=True)[width - 1]
        # The sum can only fall from here, and with a penalty the greatest length is the kindest.
        length = self._sampling.max_tokens if penalty > 0 else None
        return max(one.score(penalty, length) for one in self._live) <= worst_kept

    def beams(self, vocab_size: int) -> list[Beam]:
        """Return the beams found, the best first; empty where every token was banned at once."""
        sampling = self._sampling
        found = sorted(self._ended + self._live, key=lambda one: -one.score(sampling.length_penalty))
        return [
            Beam(
                one.token_ids,
                sum(one.log_probs),
                one.log_probs if sampling.return_log_probs else None,
                logits_of(one.candidates, vocab_size) if sampling.return_generation_logits else None,
            )
            for one in found[: sampling.beam_width]
            if one.token_ids
        ]

    def finish_reason(self, best: Beam) -> FinishReason:
        """Return the finish reason of the best beam, which speaks for the request."""
        is_ended = any(one.is_ended and one.token_ids is best.token_ids for one in self._ended)
        return FinishReason.STOP if is_ended else FinishReason.LENGTH
