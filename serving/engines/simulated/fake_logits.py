# SPDX-License-Identifier: Apache-2.0
"""The logits of the engine without a model: a rule that gives bias, bans, drafts and probabilities something to act on.

At each position one candidate stands out and all other tokens are alike: the candidate's logit is 6 to 9, depending on
its id, every other one's is 0. What comes next does not depend on what was chosen, but for bad words. To sample, the
embedding bias is added, banned tokens are taken out, and the highest logit wins; among equals the first from the
candidate on, in the order of ids.
"""

import math
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np

from serving.engines.seam.packed_array import PackedArray


class FakeTokens:
    """An iterator over token ids; `log_prob` and `candidate` are of the last one.

    Args:
        candidates: one for each position, endless.
        vocab: ids that may win without a bias of their own.
        vocab_size: ids that share the probability.
        bad_words: token sequences that are never completed, neither in the output nor from the prompt into it.
    """

    def __init__(
        self,
        candidates: Iterator[int],
        *,
        vocab: range,
        vocab_size: int,
        bias: Mapping[int, float],
        bad_words: Sequence[Sequence[int]],
        prompt: Sequence[int],
    ) -> None:
        self._candidates = candidates
        self._vocab = vocab
        self._vocab_size = vocab_size
        self._bias = bias
        # Thousands of words must not be compared for each token: by the token before the last, where there is one.
        self._bad_tokens = {word[0] for word in bad_words if len(word) == 1}
        self._bad_words: dict[int, list[tuple[list[int], int]]] = {}
        for word in bad_words:
            if len(word) > 1:
                self._bad_words.setdefault(word[-2], []).append((list(word[:-1]), word[-1]))
        self._history = deque(prompt, maxlen=max((len(word) - 1 for word in bad_words), default=0))
        self._is_offered = False  # the candidate of the next position has been looked at
        self.candidate = 0
        self.log_prob = 0.0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """Return the next token.

        Raises:
            StopIteration: every token is banned.
        """
        best = self.best(1)
        if not best:
            raise StopIteration
        token_id, log_prob = best[0]
        self._take(token_id, log_prob)
        return token_id

    def best(self, count: int) -> list[tuple[int, float]]:
        """Return the likeliest tokens of the next position with their log probabilities; none where all are banned."""
        candidate, banned, logits = self._logits_here()
        for neighbour in self._neighbours(candidate, banned, count):
            logits.setdefault(neighbour, 0.0)
        if not logits:
            return []
        norm = self._norm(banned, logits)
        order = sorted(logits, key=lambda token_id: (-logits[token_id], (token_id - candidate) % self._vocab_size))
        return [(token_id, logits[token_id] - norm) for token_id in order[:count]]

    def accept(self, draft_id: int, draft_prob: float | None, threshold: float) -> bool:
        """Take a draft as the next token if it is what would come, or, with its probability there, likely enough.

        No rejection sampling: tokens here are not drawn from these probabilities, so that there is no distribution
        to keep, and the threshold is not drawn either.

        Args:
            draft_id: the token.
            draft_prob: that the draft's model gave it.
            threshold: the token's own probability must be at least this part of `draft_prob`.
        """
        _, banned, logits = self._logits_here()
        if draft_id in banned:
            return False
        log_prob = logits.get(draft_id, 0.0) - self._norm(banned, logits)
        is_likely_enough = draft_prob is not None and math.exp(log_prob) >= threshold * draft_prob
        is_accepted = is_likely_enough or draft_id in dict(self.best(1))
        if is_accepted:
            self._take(draft_id, log_prob)
        return is_accepted

    def _logits_here(self) -> tuple[int, set[int], dict[int, float]]:
        """Return the candidate, the banned tokens, and the logits that are not 0, with the bias."""
        candidate = self._candidate_here()
        banned = self._banned()
        logits = {token_id: bias for token_id, bias in self._bias.items() if token_id not in banned}
        if candidate not in banned:
            logits[candidate] = logits.get(candidate, 0.0) + peak(candidate)
        return candidate, banned, logits

    def _norm(self, banned: set[int], logits: Mapping[int, float]) -> float:
        num_others = self._vocab_size - len(banned | logits.keys())
        return _log_sum_exp(logits.values(), num_zeros=num_others)

    def fork(self, token_id: int, log_prob: float) -> "FakeTokens":
        """Return a copy that has taken a token, behind the candidates that both share (`SharedCandidates`)."""
        copy = FakeTokens.__new__(FakeTokens)
        copy.__dict__ |= self.__dict__ | {"_history": self._history.copy()}
        if isinstance(self._candidates, SharedCandidates):
            copy._candidates = self._candidates.fork()
        copy._take(token_id, log_prob)
        return copy

    def _candidate_here(self) -> int:
        if not self._is_offered:
            self.candidate = next(self._candidates)
            self._is_offered = True
        return self.candidate

    def _take(self, token_id: int, log_prob: float) -> None:
        self._is_offered = False
        self.log_prob = log_prob
        self._history.append(token_id)

    def _banned(self) -> set[int]:
        """Return the tokens that would complete a bad word now."""
        history = list(self._history)
        words = self._bad_words.get(history[-1], ()) if history else ()
        return self._bad_tokens | {last for beginning, last in words if history[-len(beginning) :] == beginning}

    def _neighbours(self, candidate: int, banned: set[int], count: int) -> list[int]:
        """Return the first tokens from the candidate on that have no bias and are not banned."""
        ids = self._vocab
        start = candidate - ids.start if candidate in ids else 0
        rotated = (ids[(start + i) % len(ids)] for i in range(len(ids)))
        free = (i for i in rotated if i not in banned and i not in self._bias)
        return [token_id for token_id, _ in zip(free, range(count), strict=False)]


class SharedCandidates:
    """Candidates that several hypotheses walk along, each at its own place.

    What comes next does not depend on what was chosen, so one list serves all.
    """

    def __init__(self, candidates: Iterator[int]) -> None:
        self._source = candidates
        self._known: list[int] = []
        self._position = 0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        while len(self._known) <= self._position:
            self._known.append(next(self._source))
        self._position += 1
        return self._known[self._position - 1]

    def fork(self) -> "SharedCandidates":
        """Return another walker at this place."""
        copy = SharedCandidates(self._source)
        copy._known, copy._position = self._known, self._position
        return copy


def peak(candidate: int) -> float:
    """Return the logit of a candidate."""
    return 6.0 + candidate % 7 * 0.5


def logits_of(candidates: Iterable[int], vocab_size: int) -> PackedArray:
    """Return the logits before bias and bans: ``[candidates, vocab_size] float32``."""
    ids = list(candidates)
    rows = np.zeros((len(ids), vocab_size), dtype=np.float32)
    rows[np.arange(len(ids)), ids] = [peak(candidate) for candidate in ids]
    return PackedArray.of(rows)


def _log_sum_exp(logits: Collection[float], *, num_zeros: int) -> float:
    highest = max((0.0, *logits))
    return highest + math.log(math.fsum(math.exp(x - highest) for x in logits) + num_zeros * math.exp(-highest))
