# SPDX-License-Identifier: Apache-2.0
"""The times at which requests in flight are expected to end, and the KV budget that is free at each."""

import bisect

from serving.admission.budget import KvBudget
from serving.admission.kv_budget import KvAmount

_WEIGHT = 0.05  # of the newest step
_NOTHING = 1e-9


class ExpectedEnds:
    """The expected end of each request in flight, counted in tokens of a sequence.

    All running sequences get on by about the same number of tokens in a step. So an end stays where it is however fast
    steps are, and an end that was expected when a request started need not be looked at again before it comes. A
    request that is still there then is expected to make half as much again.
    """

    def __init__(self, budget: KvBudget) -> None:
        self._budget = budget
        self._made = 0.0  # tokens that a sequence would have that was always there
        self.token_s = 0.0  # recent seconds for a token of a sequence; 0 before the first
        self._recent_s = self._recent_tokens = 0.0  # sums in which old steps fade
        self._ends: list[tuple[float, int, int]] = []  # sorted: when, key, reserved tokens
        self._begun: dict[int, tuple[float, float, int]] = {}  # by key: when it began, its end, its reserved tokens

    def note_step(self, seconds: float, *, tokens_per_seq: float) -> None:
        """Note that each sequence has got `tokens_per_seq` tokens, `seconds` after the tokens before them."""
        self._made += tokens_per_seq
        self._recent_s += seconds - _WEIGHT * self._recent_s
        self._recent_tokens += tokens_per_seq - _WEIGHT * self._recent_tokens
        self.token_s = self._recent_s / self._recent_tokens

    def begin(self, key: int, *, num_output_tokens: int) -> None:
        """Note the start of a request that has its reservation and is expected to make `num_output_tokens` tokens."""
        self._put(key, self._made, self._made + num_output_tokens)

    def end(self, key: int) -> None:
        """Forget a request that is not in flight any more."""
        _, end, num_tokens = self._begun.pop(key)
        del self._ends[bisect.bisect_left(self._ends, (end, key, num_tokens))]

    def seconds_until(self, needed: KvAmount, room: KvAmount, *, share: float, stay_s: float) -> float:
        """Return the seconds until `needed` fits; 0 while nothing is known.

        Args:
            needed: demand of the waiting requests and the new one together.
            room: KV budget that is free now.
            share: fraction of freed budget that is left for these requests, above 0 and at most 1.
            stay_s: how long a request is in flight, for those that start and end before it.
        """
        num_seats: float = needed.num_seats - room.num_seats
        num_blocks: float = needed.num_blocks - room.num_blocks
        num_tokens: float = needed.num_tokens - room.num_tokens
        if num_seats <= 0 and num_blocks <= 0 and num_tokens <= 0:
            return 0.0
        self._put_off_overdue()
        budget = self._budget
        if (
            num_seats <= share * len(self._ends)
            and num_blocks <= share * budget.num_reserved_blocks
            and num_tokens <= share * budget.num_reserved_tokens
        ):
            for end, _, reserved in self._ends:
                num_seats -= share
                num_blocks -= share * budget.blocks_of(reserved)
                num_tokens -= share * reserved
                if num_seats <= _NOTHING and num_blocks <= _NOTHING and num_tokens <= _NOTHING:
                    return (end - self._made) * self.token_s
        # All that runs has to end, and more after it.
        last_s = (self._ends[-1][0] - self._made) * self.token_s if self._ends else 0.0
        num_seats -= share * len(self._ends)
        num_tokens -= share * budget.num_reserved_tokens
        num_more = max(1.0, num_seats, num_tokens / self._tokens_of_one(needed)) / share
        return last_s + num_more * stay_s / self._num_at_once(needed)

    def _tokens_of_one(self, needed: KvAmount) -> float:
        num_tokens = needed.num_tokens + self._budget.num_reserved_tokens
        return max(1.0, num_tokens / (needed.num_seats + len(self._budget)))

    def _num_at_once(self, needed: KvAmount) -> float:
        """Return the requests in flight when as many as fit have started."""
        most = self._budget.max_tokens / self._tokens_of_one(needed)
        return max(1.0, min(self._budget.num_seats, most))

    def _put_off_overdue(self) -> None:
        while self._ends and self._ends[0][0] <= self._made:
            _, key, _ = self._ends[0]
            begun = self._begun[key][0]
            self.end(key)
            self._put(key, begun, self._made + max(1.0, (self._made - begun) / 2))

    def _put(self, key: int, begun: float, end: float) -> None:
        num_tokens = self._budget.reserved_tokens(key)
        self._begun[key] = (begun, end, num_tokens)
        bisect.insort(self._ends, (end, key, num_tokens))
