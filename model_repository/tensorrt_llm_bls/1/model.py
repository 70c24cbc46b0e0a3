# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `tensorrt_llm_bls` (text to text); the logic is in serving.pipeline.release_routing."""

import triton_python_backend_utils as pb_utils

from serving.pipeline.release_routing import ReleaseRouting
from serving.pipeline.triton_adapter import Responses, release_folder, start_each
from serving.process.control_channel import ControlChannel, generation_handlers
from serving.telemetry.request_tracer import RequestTracer


class TritonPythonModel:
    """Takes requests and returns at once; the threads of each release's replies respond."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        self.responses = Responses(args, step="tensorrt_llm_bls")
        self.releases = ReleaseRouting(release_folder(args), pb_utils.MetricFamily)
        self.control_channel = ControlChannel(args, generation_handlers(self.releases))

    def execute(self, requests: list) -> None:
        start_each(self._start, requests, self.tracer)

    def _start(self, request, *, observer) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self.releases.start(
            tensors,
            self.responses.sink(request, observer),
            request_id=request.request_id(),
            parameters=request.parameters(),
            timeout_us=request.timeout(),
            observer=observer,
        )

    def finalize(self) -> None:
        self.control_channel.close()
        self.releases.close()
        self.tracer.close()
