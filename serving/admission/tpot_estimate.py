# SPDX-License-Identifier: Apache-2.0
"""The TPOT estimate: the time of a step, and how many sequences may run beside each other within a TPOT target."""

import bisect

import numpy as np
import numpy.typing as npt

from serving.admission.expected_ends import ExpectedEnds

_FORGET = 0.995  # of each step's weight with every one that follows: the last two hundred count
_MIN_STEPS = 20
_STEPS_PER_FIT = 10


_PROMPT_WEIGHT = 0.02  # of the newest step


class TpotEstimate:
    """The TPOT estimate of one engine, by the time between the steps that make tokens.

    An engine that steps by itself is asked more often than it has tokens, and a prefill may make none: such time counts
    for the tokens that come next.

    Args:
        tpot_s: the target in seconds for each token after the first, None: none.
    """

    def __init__(self, ends: ExpectedEnds, tpot_s: float | None) -> None:
        self._ends = ends
        self._tpot_s = tpot_s
        self._times = StepTimes()
        self._pending_s = 0.0  # time since the last tokens
        self._num_pending_prompt_tokens = 0
        self._prompt_tokens_per_step = 0.0

    def note(self, seconds: float, *, num_seqs: int, num_prompt_tokens: int, num_made: int) -> None:
        """Note a step of `seconds`.

        Args:
            seconds: duration of the step.
            num_seqs: sequences in the step.
            num_prompt_tokens: prompt tokens of the requests that began with the step.
            num_made: tokens that the step made, over all sequences.
        """
        self._pending_s += seconds
        self._num_pending_prompt_tokens += num_prompt_tokens
        if not num_made:
            return
        tokens_per_seq = num_made / num_seqs
        self._ends.note_step(self._pending_s, tokens_per_seq=tokens_per_seq)
        if self._tpot_s is not None:
            num_prompt = self._num_pending_prompt_tokens
            self._times.note(self._pending_s / tokens_per_seq, num_seqs=num_seqs, num_prompt_tokens=num_prompt)
            self._prompt_tokens_per_step += _PROMPT_WEIGHT * (num_prompt - self._prompt_tokens_per_step)
        self._pending_s, self._num_pending_prompt_tokens = 0.0, 0

    def allows(self, num_seqs: int) -> bool:
        """Return whether `num_seqs` sequences meet the TPOT target; one always does."""
        if self._tpot_s is None or num_seqs == 1:
            return True
        seconds = self._times.seconds(num_seqs, prompt_tokens_per_step=self._prompt_tokens_per_step)
        return seconds is None or seconds <= self._tpot_s

    def most_seqs(self, limit: int) -> int:
        """Return the most sequences that meet the TPOT target, at least 1 and at most `limit`."""
        if self._tpot_s is None:
            return limit
        return 1 + bisect.bisect_left(range(2, limit + 1), 1, key=lambda num_seqs: not self.allows(num_seqs))


class StepTimes:
    """A fit of seconds = a + b x sequences + c x prompt tokens to the last steps, by weighted least squares.

    Decoding reads the weights once (a) and each sequence's KV cache (b); prefill computes by tokens (c).
    """

    def __init__(self) -> None:
        self._products: npt.NDArray[np.float64] = np.zeros((3, 3))
        self._targets: npt.NDArray[np.float64] = np.zeros(3)
        self._num_steps = 0
        self._factors = (0.0, 0.0, 0.0)

    def note(self, seconds: float, *, num_seqs: int, num_prompt_tokens: int) -> None:
        """Note that a token of each sequence took `seconds`, beside `num_prompt_tokens` tokens of new prompts."""
        row = np.array((1.0, num_seqs, num_prompt_tokens), dtype=np.float64)
        self._products = _FORGET * self._products + np.outer(row, row)
        self._targets = _FORGET * self._targets + seconds * row
        self._num_steps += 1
        if self._num_steps % _STEPS_PER_FIT == 0:
            # A little ridge on the slopes: while the number of sequences never changes, all is the fixed part's.
            ridge = np.diag(1e-6 * np.diag(self._products) + 1e-12)
            ridge[0, 0] = 1e-12
            solved = np.linalg.solve(self._products + ridge, self._targets)
            fixed_s, sequence_s, prompt_s = (max(0.0, float(factor)) for factor in solved)
            self._factors = (fixed_s, sequence_s, prompt_s)

    def seconds(self, num_seqs: int, *, prompt_tokens_per_step: float = 0.0) -> float | None:
        """Return the seconds of a step with `num_seqs` sequences; None: too few steps have been seen."""
        if self._num_steps < _MIN_STEPS:
            return None
        fixed_s, sequence_s, prompt_s = self._factors
        return fixed_s + sequence_s * num_seqs + prompt_s * prompt_tokens_per_step
