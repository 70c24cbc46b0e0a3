# SPDX-License-Identifier: Apache-2.0
"""The prompts of `preprocessing`'s callers: short ones are answered at once, long ones by a thread of their own."""

from functools import partial
from pathlib import Path

from serving.pipeline.long_prompts import LongPrompt, LongPrompts
from serving.pipeline.prompt_step import PromptStep
from serving.requests.tensor_sink import Tensors, TensorSink
from serving.telemetry.request_observer import UNTRACED, RequestObserver
from trireme.base.errors import ServingError, Unavailable


class PromptService:
    """One adapter's."""

    def __init__(self, step: PromptStep) -> None:
        self._step = step
        self._long = LongPrompts()

    @classmethod
    def from_release(cls, folder: Path) -> "PromptService":
        """Load the tokenizer of a release.

        Raises:
            SpecError: no such release, or no usable tokenizer in it.
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
        """Take one request; the response comes through `sink`, of long text after this has returned.

        Args:
            tensors: by the names of `preprocessing`'s inputs.
            sink: where the response goes.
            request_id: the client's.
            stream_name: of the gRPC stream or HTTP request it came on, in the graph, too; empty: not known.
            observer: the request's.

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
        """Requests that have had no response."""
        return self._long.num_waiting

    def refuse_new(self, because: Unavailable) -> None:
        """From now on long text is refused. Short text is answered at once, so nobody has to wait for it."""
        self._long.refuse_new(because)

    def cancel_all(self, because: ServingError) -> None:
        """End every request that has had no response; each fails with `because`."""
        self._long.cancel_all(because)

    def close(self) -> None:
        """Forget those that wait."""
        self._long.close()
