# SPDX-License-Identifier: Apache-2.0
"""The queue of requests with long text: a thread of its own tokenizes them, while requests with short text pass by.

Triton hands requests over one after the other, so every other request waits for work that is done at once. To tokenize
a megabyte takes half a second, in which `serving.text.tokenization` does without the GIL.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from serving.pipeline.late_refusal import fail_quietly, refuse_late
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.process.left_streams import LEFT_STREAMS
from serving.requests.tensor_sink import TensorSink
from serving.text.tokenization import LONG_TEXT_BYTES
from trireme.base.errors import QueueFull, RequestCancelled, ServingError, Unavailable

_ITEM_BYTES = 4  # before each string in Triton's form: a million of empty ones is work, too
_BYTES_PER_MS = 1000  # tokenized, for the time to come back
_THREAD_ENDS_S = 1.0


def text_bytes(tensors: Mapping[str, npt.NDArray[np.generic]]) -> int:
    """Return the bytes of text that a request has in all of its tensors together."""
    texts = [array.reshape(-1).tolist() for array in tensors.values() if array.dtype == np.object_]
    return sum(sum(map(len, items)) + _ITEM_BYTES * len(items) for items in texts)


class LaneLimits(NamedTuple):
    """The limits of one lane: the sizes of text that it takes, and how much may wait."""

    up_to_bytes: float  # of a request; a larger request goes to another lane
    num_threads: int
    max_waiting: int
    max_waiting_bytes: int


# A prompt of some thousand tokens, as retrieval makes them, does not wait for one that is a book.
_LANES = (
    LaneLimits(262_144, num_threads=2, max_waiting=1024, max_waiting_bytes=1 << 26),
    LaneLimits(float("inf"), num_threads=1, max_waiting=64, max_waiting_bytes=1 << 26),
)


@dataclass(slots=True, eq=False)
class LongPrompt:
    """A request with long text that waits or is being tokenized."""

    prepare: Callable[[], Any]  # tokenizes; takes long. It may raise.
    begin: Callable[[Any], None]  # continues with the result of `prepare`; takes no time. It may raise.
    sink: TensorSink  # gets the error that `prepare` or `begin` raises
    origin: RequestOrigin = NO_ORIGIN
    num_bytes: int = 0
    error: ServingError | None = None  # why it is not to begin
    lock: threading.Lock = field(default_factory=threading.Lock)  # of `error`, and held over `begin`: one comes first


class LongPrompts:
    """The requests with long text of one adapter; a lane for each range of sizes is first come, first served."""

    def __init__(self, lanes: tuple[LaneLimits, ...] = _LANES) -> None:
        self._lanes = [_Lane(limits) for limits in lanes]

    def take(self, tensors: Mapping[str, npt.NDArray[np.generic]], prompt: LongPrompt) -> bool:
        """Take a request with long text, and return whether the text is long; the caller handles short text at once.

        Raises:
            Unavailable: too many requests wait, or new requests are refused; `prompt.sink` was not called.
        """
        num_bytes = text_bytes(tensors)
        if num_bytes <= LONG_TEXT_BYTES:
            return False
        prompt.num_bytes = num_bytes
        lane = next(lane for lane in self._lanes if num_bytes <= lane.limits.up_to_bytes)
        lane.put(prompt)
        return True

    @property
    def num_waiting(self) -> int:
        """Return the number of requests that were taken and have not begun."""
        return sum(lane.num_waiting for lane in self._lanes)

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every new request from now on; waiting requests stay."""
        for lane in self._lanes:
            lane.refuse_new(because)

    def cancel_all(self, because: ServingError) -> None:
        """End every request that has not begun with the error `because`; none begins after the return."""
        for lane in self._lanes:
            lane.cancel_all(because)

    def close(self) -> None:
        """Drop the waiting requests; they get no response."""
        for lane in self._lanes:
            lane.close()


class _Lane:
    def __init__(self, limits: LaneLimits) -> None:
        self.limits = limits
        self._waiting: deque[LongPrompt] = deque()
        self._working: set[LongPrompt] = set()
        self._refusal: Unavailable | None = None
        self._is_closed = False
        self._threads: list[threading.Thread] = []
        self._changed = threading.Condition()  # its lock guards the fields above

    @property
    def num_waiting(self) -> int:
        with self._changed:
            return len(self._waiting) + len(self._working)

    def put(self, prompt: LongPrompt) -> None:
        with self._changed:
            is_full = self._is_full(prompt.num_bytes)
        if is_full:
            self._drop_left()
        with self._changed:
            if self._refusal is not None:
                raise self._refusal
            if self._is_full(prompt.num_bytes):
                raise self._full()
            self._waiting.append(prompt)
            if len(self._threads) < self.limits.num_threads:
                thread = threading.Thread(target=self._work, name="long-prompts", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify()

    def refuse_new(self, because: Unavailable) -> None:
        with self._changed:
            self._refusal = because

    def cancel_all(self, because: ServingError) -> None:
        with self._changed:
            waiting, working = list(self._waiting), list(self._working)
            self._waiting.clear()
        for prompt in waiting:
            fail_quietly(prompt.sink, because)
        for prompt in working:
            with prompt.lock:
                prompt.error = because

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(_THREAD_ENDS_S)

    def _waiting_bytes(self) -> int:
        return sum(prompt.num_bytes for prompt in self._waiting)

    def _is_full(self, num_bytes: int) -> bool:
        """Return whether another request is too much for the lane; an empty lane takes any request."""
        is_too_much = self._waiting_bytes() + num_bytes > self.limits.max_waiting_bytes
        return bool(self._waiting) and (is_too_much or len(self._waiting) >= self.limits.max_waiting)

    def _full(self) -> QueueFull:
        waiting_bytes = self._waiting_bytes()
        return QueueFull(
            f"{len(self._waiting)} prompts of {waiting_bytes} bytes wait to be tokenized; try again later",
            reason="long_prompts",
            retry_after_ms=waiting_bytes // _BYTES_PER_MS,
        )

    def _drop_left(self) -> None:
        """End the waiting requests whose client has gone, to make room."""
        with self._changed:
            waiting = list(self._waiting)
        for prompt in [prompt for prompt in waiting if _has_left(prompt)]:
            with self._changed:
                if prompt not in self._waiting:
                    continue
                self._waiting.remove(prompt)
            fail_quietly(prompt.sink, _client_gone())

    def _work(self) -> None:
        while (prompt := self._next()) is not None:
            try:
                self._start(prompt)
            except Exception as exc:  # one bad request must not end those behind it
                self._refuse(prompt, exc)
            finally:
                with self._changed:
                    self._working.discard(prompt)
                prompt = None  # its text is large, and the next may be long in coming

    def _next(self) -> LongPrompt | None:
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return None
            prompt = self._waiting.popleft()
            self._working.add(prompt)
            return prompt

    def _start(self, prompt: LongPrompt) -> None:
        if _has_left(prompt):
            raise _client_gone()
        prepared = prompt.prepare()
        if _has_left(prompt):
            raise _client_gone()
        with prompt.lock:
            if prompt.error is not None:
                raise prompt.error
            if not self._is_closed:
                prompt.begin(prepared)

    def _refuse(self, prompt: LongPrompt, exc: Exception) -> None:
        if not self._is_closed:
            refuse_late(prompt.sink, exc, prompt.origin, waited_for="a tokenizer")


def _has_left(prompt: LongPrompt) -> bool:
    return prompt.error is None and (prompt.origin.stream_name in LEFT_STREAMS or prompt.sink.is_cancelled())


def _client_gone() -> RequestCancelled:
    return RequestCancelled("the client went away or cancelled the request")
