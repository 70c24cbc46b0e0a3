# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `preprocessing` (text to tokens); the logic is in serving.prompt_step."""

from functools import partial

import triton_python_backend_utils as pb_utils

from serving.lifeline import Lifeline
from serving.prompt_step import PromptStep
from serving.tracing.request_tracer import RequestTracer
from serving.triton_adapter import guarded, release_folder


class TritonPythonModel:
    """One request, one response."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        self.step = PromptStep.from_release(release_folder(args))
        self.lifeline = Lifeline(args, {"status": lambda: {"num_streams": 0}})

    def execute(self, requests: list) -> list:
        return [self._guarded(request) for request in requests]

    def _guarded(self, request):
        trace = self.tracer.begin(request)
        return guarded(partial(self._respond, trace=trace), request, trace)

    def _respond(self, request, *, trace):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        prompt = self.step.respond(tensors, traceparent=trace.handed_on() if trace is not None else "")
        if trace is not None:
            trace.end_step("preprocessing")
        return pb_utils.InferenceResponse([pb_utils.Tensor(*named) for named in prompt.items()])

    def finalize(self) -> None:
        self.lifeline.close()
        self.tracer.close()
