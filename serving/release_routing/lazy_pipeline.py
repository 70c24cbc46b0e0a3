# SPDX-License-Identifier: Apache-2.0
"""A pipeline of another release, opened by a thread of its own: a tokenizer is loaded, an engine may still load."""

import logging
import threading
from collections.abc import Callable

from serving.pipeline.late_refusal import error_for_client, fail_quietly, refuse_late
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.pipeline.text_pipeline import TextPipeline
from serving.requests.tensor_sink import Tensors, TensorSink
from trireme.base.errors import ServingError

_log = logging.getLogger("trireme.release_routing")


class LazyPipeline:
    """A `TextPipeline` that a thread of its own opens, while the first requests wait; they fail if it cannot be opened.

    To load a tokenizer takes a good part of a second, and an engine may still be loading: requests to other releases
    do not wait for it.

    Args:
        load: opens the pipeline; called once, on the new thread.
        give_up: makes `load` return at once, with an error.
    """

    def __init__(self, load: Callable[[], TextPipeline], *, give_up: Callable[[], None]) -> None:
        self._load = load
        self._give_up = give_up
        self._pipeline: TextPipeline | None = None
        self._failure: ServingError | None = None
        self._waiting: list[tuple[Tensors, TensorSink, RequestOrigin]] = []
        self._lock = threading.Lock()  # of the fields above: a request waits, or finds the pipeline or the failure
        self._opener = threading.Thread(target=self._open, name="open-release", daemon=True)
        self._opener.start()

    @property
    def is_open(self) -> bool:
        """Return whether a request would begin at once."""
        return self._pipeline is not None

    @property
    def is_accumulating(self) -> bool:
        """Return whether each response of the open pipeline holds the whole text so far."""
        return self._pipeline is not None and self._pipeline.is_accumulating

    @property
    def has_failed(self) -> bool:
        """Return whether the pipeline could not be opened; a new pipeline may succeed."""
        return self._failure is not None

    def start(self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin = NO_ORIGIN) -> None:
        """Take one request as `TextPipeline.start` does; a request that has to wait is refused through its sink.

        Raises:
            ServingError: the request is refused, or the pipeline could not be opened; `sink` was not called.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._pipeline is None:
                self._waiting.append((tensors, sink, origin))
                return
        self._pipeline.start(tensors, sink, origin)

    @property
    def num_running(self) -> int:
        """Return the number of requests that wait or run."""
        with self._lock:
            return len(self._waiting) + (self._pipeline.num_running if self._pipeline else 0)

    def cancel_all(self, because: ServingError) -> None:
        """End every request that waits or runs with the error `because`."""
        with self._lock:
            self._fail_waiting(because)
        if self._pipeline is not None:
            self._pipeline.cancel_all(because)

    def close(self) -> None:
        """Hang up on the engine, or stop waiting for it."""
        self._give_up()
        self._opener.join()
        if self._pipeline is not None:
            self._pipeline.close()

    def _open(self) -> None:
        try:
            pipeline = self._load()
        except Exception as exc:  # waiting requests would wait for ever
            with self._lock:
                self._failure = error_for_client(exc, "unexpected error while a release was opened", log=_log)
                self._fail_waiting(self._failure)
            return
        with self._lock:
            self._pipeline = pipeline
            for tensors, sink, origin in self._waiting:
                try:
                    pipeline.start(tensors, sink, origin)
                except Exception as exc:  # one bad request must not end those behind it
                    refuse_late(sink, exc, origin, waited_for="a release")
            self._waiting.clear()

    def _fail_waiting(self, error: ServingError) -> None:
        for _, sink, *_ in self._waiting:
            fail_quietly(sink, error)
        self._waiting.clear()
