# SPDX-License-Identifier: Apache-2.0
"""The tokenization of prompts for `preprocessing`: short text is answered at once, long text by a thread of its own."""

from functools import partial

from serving.pipeline.long_prompts import LongPrompt, LongPrompts
from serving.pipeline.prompt_step import PromptStep
from serving.pipeline.request_origin import NO_ORIGIN, RequestOrigin
from serving.requests.tensor_sink import Tensors, TensorSink
from trireme.base.errors import ServingError, Unavailable


class PromptService:
    """The prompt step of one adapter, with its queue of long text."""

    def __init__(self, step: PromptStep) -> None:
        self._step = step
        self._long = LongPrompts()

    def start(self, tensors: Tensors, sink: TensorSink, origin: RequestOrigin = NO_ORIGIN) -> None:
        """Take one request; the response comes through `sink`, for long text after the return.

        Args:
            tensors: tensors by the names of `preprocessing`'s inputs.
            sink: takes the response.
            origin: origin of the request.

        Raises:
            ServingError: the request is refused, and `sink` was not called.
        """

        def answer(prompt: Tensors) -> None:
            origin.observer.end_step("preprocessing")
            sink.send(prompt, is_final=True)

        prepare = partial(self._step.respond, tensors, traceparent=origin.observer.traceparent)
        if not self._long.take(tensors, LongPrompt(prepare, answer, sink, origin)):
            answer(prepare())

    @property
    def num_running(self) -> int:
        """Return the number of requests that have had no response."""
        return self._long.num_waiting

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse long text from now on; short text is answered at once, so no client waits for it."""
        self._long.refuse_new(because)

    def cancel_all(self, because: ServingError) -> None:
        """End every request that has had no response with the error `because`."""
        self._long.cancel_all(because)

    def close(self) -> None:
        """Drop the waiting requests; they get no response."""
        self._long.close()
