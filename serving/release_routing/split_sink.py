# SPDX-License-Identifier: Apache-2.0
"""The sink of a request that a split sent to a release: it sees the end, and hands the request on in time.

What a release cannot begin, another one answers: until something was sent, the client knows nothing of it.
"""

from collections.abc import Callable
from typing import NamedTuple

from ensemble_configs.split.repetition import ends_in_repetition
from serving.requests.tensor_sink import Tensors, TensorSink
from trireme.base.errors import ServingError

_TAIL_BYTES = 2048  # of a text, for its end: more than `ends_in_repetition` looks at


class TextEnd(NamedTuple):
    """The signs of a broken release in a whole text."""

    is_empty: bool
    is_looping: bool


class _Text:
    def __init__(self) -> None:
        self._tails: dict[tuple[int, ...], bytes] = {}

    def add(self, tensors: Tensors, *, is_accumulating: bool) -> None:
        if (texts := tensors.get("text_output")) is None or not texts.size:
            return
        new = bytes(texts.reshape(-1)[0])
        name = tuple(int(tensors[part].item()) if part in tensors else 0 for part in ("batch_index", "sequence_index"))
        known = b"" if is_accumulating else self._tails.get(name, b"")
        self._tails[name] = (known + new)[-_TAIL_BYTES:]

    def end(self) -> TextEnd:
        is_looping = any(ends_in_repetition(tail.decode(errors="ignore")) for tail in self._tails.values())
        return TextEnd(not any(self._tails.values()), is_looping)


class SplitSink:
    """The sink of one request on one release.

    Args:
        sink: sink of the client.
        is_accumulating: each response holds the whole text so far.
        on_answer: called before the last response of a request that was answered.
        on_error: called with the error of a request that failed; returns whether somebody else answers it. It may only
            do so where nothing was sent.
    """

    def __init__(
        self,
        sink: TensorSink,
        *,
        is_accumulating: bool,
        on_answer: Callable[[TextEnd], None],
        on_error: Callable[[ServingError, bool], bool],
    ) -> None:
        self._sink = sink
        self._is_accumulating = is_accumulating
        self._on_answer = on_answer
        self._on_error = on_error
        self._text = _Text()
        self._has_begun = False
        self.takes_one = sink.takes_one
        self.is_cancelled = sink.is_cancelled
        self.named_outputs = sink.named_outputs

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """Send one response; with the last one the outcome is written first."""
        self._has_begun = True
        self._text.add(tensors, is_accumulating=self._is_accumulating)
        if is_final:
            self._on_answer(self._text.end())
        self._sink.send(tensors, is_final=is_final)

    def fail(self, error: ServingError) -> None:
        """Send an error as the last response, unless another release answers."""
        if not self._on_error(error, self._has_begun):
            self._sink.fail(error)


class AcceptedSink:
    """The sink of a request that is tried again; it tells whether the request was one that can be served.

    Args:
        sink: sink of the client.
        on_accepted: called once, before the first response or an error that is not the client's.
    """

    def __init__(self, sink: TensorSink, on_accepted: Callable[[], None]) -> None:
        self._sink = sink
        self._on_accepted: Callable[[], None] | None = on_accepted
        self.takes_one = sink.takes_one
        self.is_cancelled = sink.is_cancelled
        self.named_outputs = sink.named_outputs

    def send(self, tensors: Tensors, *, is_final: bool) -> None:
        """Send one response."""
        self._accept()
        self._sink.send(tensors, is_final=is_final)

    def fail(self, error: ServingError) -> None:
        """Send an error as the last response."""
        if error.code != "INVALID_ARG":
            self._accept()
        self._sink.fail(error)

    def _accept(self) -> None:
        accept, self._on_accepted = self._on_accepted, None
        if accept is not None:
            accept()
