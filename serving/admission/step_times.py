# SPDX-License-Identifier: Apache-2.0
"""How long a step takes with one more sequence in it, learned while it runs: the bound that a TPOT target sets."""

import numpy as np
import numpy.typing as npt

_FORGET = 0.995  # of each step's weight with every one that follows: the last two hundred count
_MIN_STEPS = 20
_STEPS_PER_FIT = 10


class StepTimes:
    """Fits seconds = a + b x sequences + c x prompt tokens to the last steps, by weighted least squares.

    Decoding reads the weights once (a) and each sequence's KV cache (b); prefill computes by tokens (c).
    """

    def __init__(self) -> None:
        self._products: npt.NDArray[np.float64] = np.zeros((3, 3))
        self._targets: npt.NDArray[np.float64] = np.zeros(3)
        self._num_steps = 0
        self._factors = (0.0, 0.0, 0.0)

    def note(self, seconds: float, *, num_seqs: int, num_prompt_tokens: int) -> None:
        """A token of each sequence has taken so long, with so many of them and so many tokens of prompts that began."""
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
        """Of a step with so many sequences; None: too few have been seen."""
        if self._num_steps < _MIN_STEPS:
            return None
        fixed_s, sequence_s, prompt_s = self._factors
        return fixed_s + sequence_s * num_seqs + prompt_s * prompt_tokens_per_step
