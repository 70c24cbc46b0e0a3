# SPDX-License-Identifier: Apache-2.0
"""The limit on prefill of the batch class while requests of the classes above share its steps."""

from serving.engines.seam.scheduling import Priority

_PAID_PER_STEP = 1 / 30  # so a prompt of twice the share is followed by thirty steps without such a one
_PATIENCE_STEPS = 8
_ROUNDING = 1e-6


class BatchPrefill:
    """The prompts in prefill, and the rule that says when one more of the batch class may begin.

    A prompt that has begun cannot be held back: engines prefill in order of arrival, as many tokens as fit a step.
    While requests of the classes above are in the engine, batch prompts that have begun and have no token yet may have
    `share` of a step's tokens together. A prompt longer than that begins alone, in a step that prefills nothing of the
    classes above (or when it has waited for one for eight), and what it has beyond the share is paid for before
    the next such prompt begins: a thirtieth of the share with each step. Otherwise the class begins what fills a step.

    Args:
        step_tokens: most tokens that the engine computes in a step.
        share: fraction of `step_tokens` for the batch class; 1: nothing is held back.
    """

    def __init__(self, *, step_tokens: int, share: float) -> None:
        self._step_tokens = step_tokens
        self._is_bounded = share < 1
        self._most_tokens = max(1.0, share * step_tokens)
        self._paid_tokens = _PAID_PER_STEP * self._most_tokens
        self._prefilling: dict[int, tuple[Priority, int]] = {}  # by key: its class, and tokens of its prompt
        self._num_batch_tokens = 0  # of these
        self._num_above_prefilling = self._num_above = 0  # requests of the classes above
        self._owed_tokens = 0.0
        self._num_steps_since_long = 0  # or since a long one could have begun first
        self._num_waiting = 0
        self._waiting_steps = 0.0

    def may_begin(self, priority: Priority, num_tokens: int) -> bool:
        """Return whether a prompt of `num_tokens` tokens may begin now; False for the batch class only."""
        if not self._is_bounded or priority is not Priority.BATCH:
            return True
        if not self._num_above:
            return self._num_batch_tokens < self._step_tokens
        if self._num_batch_tokens and self._num_batch_tokens + num_tokens > self._most_tokens:
            return False
        if num_tokens <= self._most_tokens:
            return True
        is_quiet = not self._num_above_prefilling or self._num_steps_since_long >= _PATIENCE_STEPS
        return self._owed_tokens <= _ROUNDING and is_quiet

    def begin(self, key: int, priority: Priority, num_tokens: int) -> None:
        """Note that the engine has been given a request."""
        self._prefilling[key] = (priority, num_tokens)
        if priority is not Priority.BATCH:
            self._num_above += 1
            self._num_above_prefilling += 1
            return
        self._num_batch_tokens += num_tokens
        if self._num_above and num_tokens > self._most_tokens:
            self._owed_tokens += num_tokens - self._most_tokens
            self._num_steps_since_long = 0

    def note_token(self, key: int) -> None:
        """Note a token of a request: its prompt is prefilled."""
        if (begun := self._prefilling.pop(key, None)) is None:
            return
        priority, num_tokens = begun
        if priority is Priority.BATCH:
            self._num_batch_tokens -= num_tokens
        else:
            self._num_above_prefilling -= 1

    def end(self, key: int, priority: Priority) -> None:
        """Note that a request has left the engine."""
        self.note_token(key)
        self._num_above -= priority is not Priority.BATCH

    def note_step(self) -> None:
        """Note a step that has made tokens."""
        if self._owed_tokens > 0:
            self._owed_tokens -= self._paid_tokens
        else:
            self._num_steps_since_long += 1

    def wait(self, num_tokens: int) -> None:
        """Note that a batch request of `num_tokens` prompt tokens waits."""
        self._num_waiting += 1
        self._waiting_steps += self._steps_of(num_tokens)

    def wait_no_longer(self, num_tokens: int) -> None:
        """Note that a batch request has left the queue."""
        self._num_waiting -= 1
        self._waiting_steps = self._waiting_steps - self._steps_of(num_tokens) if self._num_waiting else 0.0  # exactly

    def steps_until(self, num_tokens: int, *, num_ahead: int) -> int:
        """Return the steps that a new batch request is held back while requests of the classes above keep coming.

        Args:
            num_tokens: prompt tokens of the new request.
            num_ahead: batch requests that wait before it.
        """
        if not self._is_bounded or not self._num_above:
            return 0
        steps = self._waiting_steps * min(1.0, num_ahead / self._num_waiting) if self._num_waiting else 0.0
        if steps >= 1 or num_tokens > self._most_tokens:
            steps += max(0.0, self._owed_tokens) / self._paid_tokens
        return int(steps)

    def begins_next(self, num_tokens: int) -> bool:
        """Return whether this limit lets a waiting request of `num_tokens` prompt tokens begin with the next step."""
        if not self._is_bounded or not self._num_above:
            return True
        others = self._waiting_steps - self._steps_of(num_tokens)
        is_paid = num_tokens <= self._most_tokens or self._owed_tokens <= self._paid_tokens + _ROUNDING
        return is_paid and others + min(1.0, num_tokens / self._most_tokens) <= 1 + _ROUNDING

    def _steps_of(self, num_tokens: int) -> float:
        """Return the steps that a prompt takes from the prompts behind it."""
        most = self._most_tokens
        return num_tokens / most + max(0.0, num_tokens - most) / self._paid_tokens
