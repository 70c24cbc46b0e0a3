# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `preprocessing` (text to tokens); the logic is in serving.pipeline.prompt_service."""

from serving.pipeline.prompt_service import PromptService
from serving.pipeline.prompt_step import PromptStep
from serving.pipeline.triton_adapter import Responses, release_folder, start_each
from serving.process.control_channel import ControlChannel, generation_handlers
from serving.requests.request_parameters import parameters_of
from serving.telemetry.request_tracer import RequestTracer


class TritonPythonModel:
    """Preprocessing: one request, one response; to long text it comes after `execute` has returned."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        self.responses = Responses(args, step="preprocessing")
        self.service = PromptService(PromptStep.from_release(release_folder(args)))
        self.control_channel = ControlChannel(args, generation_handlers(self.service))

    def execute(self, requests: list) -> None:
        start_each(self._start, requests, self.tracer)

    def _start(self, request, *, observer) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        origin = self.responses.origin(request, parameters_of(request.parameters()), observer)
        self.service.start(tensors, self.responses.sink(request, origin), origin)

    def finalize(self) -> None:
        self.control_channel.close()
        self.service.close()
        self.tracer.close()
