# SPDX-License-Identifier: Apache-2.0
"""The tokenization of prompts for `preprocessing`: short text is answered at once, long text by a thread of its own."""

from functools import partial
from pathlib import Path

from serving.pipeline.long_prompts import LongPrompt, LongPrompts
from serving.pipeline.prompt_step import PromptStep
from serving.requests.tensor_sink import Tensors, TensorSink
from serving.telemetry.request_observer import UNTRACED, RequestObserver
from trireme.base.errors import ServingError, Unavailable


class PromptService:
    """The prompt step of one adapter, with its queue of long text."""

    def __init__(self, step: PromptStep) -> None:
        self._step = step
        self._long = LongPrompts()

    @classmethod
    def from_release(cls, folder: Path) -> "PromptService":
        """Load the tokenizer of a release.

        Raises:
            SpecError: there is no such release, or no usable tokenizer in it.
        """
        return cls(PromptStep.from_release(folder))

    def start(
        self,
        tensors: Tensors,
        sink: TensorSink,
        *,
        request_id: str = "",
        stream_name: str = "",
        observer: RequestObserver = UNTRACED,
    ) -> None:
        """Take one request; the response comes through `sink`, for long text after the return.

        Args:
            tensors: tensors by the names of `preprocessing`'s inputs.
            sink: takes the response.
            request_id: the request id that the client gave.
            stream_name: name of the gRPC stream or HTTP request that brought the request, in the graph, too; empty: not
                known.
            observer: observer of the request.

        Raises:
            ServingError: the request is refused, and `sink` was not called.
        """

        def answer(prompt: Tensors) -> None:
            observer.end_step("preprocessing")
            sink.send(prompt, is_final=True)

        prepare = partial(self._step.respond, tensors, traceparent=observer.traceparent)
        waiting = LongPrompt(prepare, answer, sink, request_id=request_id, stream_name=stream_name, observer=observer)
        if not self._long.take(tensors, waiting):
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
