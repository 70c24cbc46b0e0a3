# SPDX-License-Identifier: Apache-2.0
"""A sink for the responses to one text request in a test."""

import threading

from serving.requests.tensor_sink import Tensors
from trireme.base.errors import ServingError


class RecordingTensorSink:
    """A sink that keeps every call."""

    takes_one = False

    def __init__(self) -> None:
        self.responses: list[Tensors] = []
        self.error: ServingError | None = None
        self.is_abandoned = False
        self._is_ended = threading.Event()

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """Keep a response."""
        self.responses.append(tensors)
        if is_final:
            self._is_ended.set()

    def fail(self, error: ServingError) -> None:
        """Keep the error, the last call."""
        self.error = error
        self._is_ended.set()

    def is_cancelled(self) -> bool:
        """Return whether the test has walked away."""
        return self.is_abandoned

    def named_outputs(self) -> tuple[str, ...]:
        """Return no names: the test takes every output."""
        return ()

    def texts(self, timeout_s: float = 20.0) -> list[str]:
        """Return the text of every response, once the last has come without an error."""
        self.wait(timeout_s)
        assert self.error is None, self.error
        return [tensors["text_output"].item().decode() for tensors in self.responses]

    def wait(self, timeout_s: float = 20.0) -> "RecordingTensorSink":
        """Return the sink, once the last call has come."""
        assert self._is_ended.wait(timeout_s), f"no end after {len(self.responses)} responses"
        return self
