# SPDX-License-Identifier: Apache-2.0
"""The watch on one request: its times and its error, for whoever is told of its end."""

import time


class RequestWatch:
    """The facts of a request that is being answered, beside those that its answer has.

    Attributes:
        error: code of the error that ended the request; "": none.
        duration_s: to the end; None: the request runs.
    """

    def __init__(self) -> None:
        self.begun_s = time.monotonic()
        self.error = ""
        self.duration_s: float | None = None
        self._first_s: float | None = None
        self._last_s = 0.0

    def note_text(self) -> None:
        """Note that text goes to the caller now."""
        self._last_s = time.monotonic()
        if self._first_s is None:
            self._first_s = self._last_s

    def end(self) -> None:
        """Note that the request is over."""
        self.duration_s = time.monotonic() - self.begun_s

    @property
    def ttft_s(self) -> float | None:
        """Return the time to the first text of an answer that streams; None: there was none."""
        return None if self._first_s is None else self._first_s - self.begun_s

    def tpot_s(self, num_tokens: int) -> float | None:
        """Return the time of each token after the first; None: there are none, or the answer broke off."""
        if self._first_s is None or num_tokens < 2 or self.error:
            return None
        return (self._last_s - self._first_s) / (num_tokens - 1)
