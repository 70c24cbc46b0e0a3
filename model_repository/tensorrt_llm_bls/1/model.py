# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `tensorrt_llm_bls` (text to text); the logic is in serving.release_routing."""

import triton_python_backend_utils as pb_utils

from serving.pipeline.triton_adapter import Responses, release_folder, start_each
from serving.process.control_channel import ControlChannel, generation_handlers
from serving.release_routing.release_routing import ReleaseRouting
from serving.release_routing.routing_control import leaving_releases
from serving.requests.request_parameters import parameters_of
from serving.telemetry.request_tracer import RequestTracer


class TritonPythonModel:
    """Takes requests and returns at once; the threads of each release's replies respond."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        self.responses = Responses(args, step="tensorrt_llm_bls")
        self.releases = ReleaseRouting(release_folder(args), pb_utils.MetricFamily, step="tensorrt_llm_bls")
        handlers = generation_handlers(self.releases)
        self.control_channel = ControlChannel(args, handlers, leaving_releases(self.releases))

    def execute(self, requests: list) -> None:
        start_each(self._start, requests, self.tracer)

    def _start(self, request, *, observer) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        parameters = parameters_of(request.parameters())
        origin = self.responses.origin(request, parameters, observer)
        self.releases.start(tensors, self.responses.sink(request, origin), origin, parameters=parameters)

    def finalize(self) -> None:
        self.control_channel.close()
        self.releases.close()
        self.tracer.close()
