# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `ensemble` (text to text); the logic is in serving.pipeline.text_pipeline."""

import triton_python_backend_utils as pb_utils

from serving.engine_process.engine_sources import SharedEngine
from serving.pipeline.text_pipeline import TextPipeline
from serving.pipeline.triton_adapter import Responses, engine_name, origin_of, release_folder, start_each
from serving.process.control_channel import ControlChannel, generation_handlers
from serving.requests.request_parameters import check_release, parameters_of, with_scheduling
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_tracer import RequestTracer


class TritonPythonModel:
    """Takes requests and returns at once; the threads of its engine's replies respond."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        self.responses = Responses(args, step="ensemble")
        self.version = args["model_version"]
        metrics = RequestMetrics(pb_utils.MetricFamily, model=args["model_name"], version=args["model_version"])
        source = SharedEngine(engine_name(args, step="ensemble"))
        self.pipeline = TextPipeline.from_release(release_folder(args), source, metrics)
        self.control_channel = ControlChannel(args, generation_handlers(self.pipeline))

    def execute(self, requests: list) -> None:
        start_each(self._start, requests, self.tracer)

    def _start(self, request, *, observer) -> None:
        parameters = parameters_of(request.parameters())
        check_release(parameters, self.version)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self.pipeline.start(
            with_scheduling(tensors, parameters),
            self.responses.sink(request, observer),
            origin_of(request, parameters, observer),
        )

    def finalize(self) -> None:
        self.control_channel.close()
        self.pipeline.close()
        self.tracer.close()
