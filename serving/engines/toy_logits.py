# SPDX-License-Identifier: Apache-2.0
"""Logits for an engine without a model, so that bias, banned words and log probabilities have something to act on.

In each step one candidate stands out and all other tokens are alike: the candidate's logit is 6 to 9, depending on its
id, every other one's is 0. The embedding bias is added, banned tokens are taken out, and the highest logit wins; among
equals the first from the candidate on, in the order of ids.
"""

import math
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence


class ToyTokens:
    """An iterator over token ids; `log_prob` is that of the last one.

    Args:
        candidates: one for each step, endless.
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
        self._bad_words = [(list(word[:-1]), word[-1]) for word in bad_words]
        num_kept = max((len(beginning) for beginning, _ in self._bad_words), default=0)
        self._history = deque(prompt, maxlen=num_kept)
        self.log_prob = 0.0

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        """Raises: StopIteration: every token is banned."""
        candidate = next(self._candidates)
        banned = self._banned()
        logits = {token_id: bias for token_id, bias in self._bias.items() if token_id not in banned}
        if candidate not in banned:
            logits[candidate] = logits.get(candidate, 0.0) + _peak(candidate)
        if (neighbour := self._neighbour(candidate, banned)) is not None:
            logits.setdefault(neighbour, 0.0)
        if not logits:
            raise StopIteration
        token_id = min(logits, key=lambda token_id: (-logits[token_id], (token_id - candidate) % self._vocab_size))
        num_others = self._vocab_size - len(banned | logits.keys())
        self.log_prob = logits[token_id] - _log_sum_exp(logits.values(), num_zeros=num_others)
        self._history.append(token_id)
        return token_id

    def _banned(self) -> set[int]:
        """What would complete a bad word now."""
        history = list(self._history)
        return {last for beginning, last in self._bad_words if not beginning or history[-len(beginning) :] == beginning}

    def _neighbour(self, candidate: int, banned: set[int]) -> int | None:
        """The first token from the candidate on that has no bias and is not banned."""
        ids = self._vocab
        start = candidate - ids.start if candidate in ids else 0
        rotated = (ids[(start + i) % len(ids)] for i in range(len(ids)))
        return next((i for i in rotated if i not in banned and i not in self._bias), None)


def _peak(candidate: int) -> float:
    return 6.0 + candidate % 7 * 0.5


def _log_sum_exp(logits: Collection[float], *, num_zeros: int) -> float:
    highest = max(0.0, *logits)
    return highest + math.log(math.fsum(math.exp(x - highest) for x in logits) + num_zeros * math.exp(-highest))
