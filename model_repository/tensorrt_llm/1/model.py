# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `tensorrt_llm` (in-flight batching); the logic is in serving.pipeline.generation."""

from functools import partial

import triton_python_backend_utils as pb_utils

from ensemble_configs.render.release_file import load_release
from ensemble_configs.spec.model_names import prefix_of
from serving.doctor.release_check import is_verified
from serving.engine_process.engine_sources import EngineListener, OwnedEngine
from serving.pipeline.abandoned_streams import find_abandoned
from serving.pipeline.generation import GenerationService
from serving.pipeline.reply_tensors import TensorReplies
from serving.pipeline.triton_adapter import Responses, engine_name, release_folder, start_each
from serving.process.control_channel import ControlChannel, generation_handlers
from serving.requests.request_parameters import check_release, is_context_only, parameters_of, with_scheduling
from serving.telemetry.engine_metrics import EngineMetrics
from serving.telemetry.request_metrics import RequestMetrics
from serving.telemetry.request_tracer import RequestTracer


class TritonPythonModel:
    """Takes requests and returns at once; the threads of its replies respond."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        folder = release_folder(args)
        self.responses = Responses(args, step="tensorrt_llm")
        self.version = args["model_version"]
        gauges = EngineMetrics(pb_utils.MetricFamily, model=args["model_name"], version=args["model_version"])
        metrics = RequestMetrics(pb_utils.MetricFamily, model=args["model_name"], version=args["model_version"])
        check = partial(
            find_abandoned,
            model=prefix_of(args["model_name"], "tensorrt_llm") + "postprocessing",
            version=self.version,
        )
        release = load_release(folder)
        clients = EngineListener(engine_name(args, step="tensorrt_llm"))
        engine = OwnedEngine.of_release(release, folder, clients)
        self.service = GenerationService(release, engine, metrics=metrics, on_stats=gauges.update, find_abandoned=check)
        gauges.describe(self.service.info, is_verified=is_verified(release))
        handlers = generation_handlers(self.service, is_engine_up=lambda: self.service.is_engine_up)
        self.control_channel = ControlChannel(args, handlers)

    def execute(self, requests: list) -> None:
        start_each(self._start, requests, self.tracer)

    def _start(self, request, *, observer) -> None:
        parameters = parameters_of(request.parameters())
        check_release(parameters, self.version)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        origin = self.responses.origin(request, parameters, observer)
        self.service.start(
            with_scheduling(tensors, parameters),
            TensorReplies(self.responses.sink(request, origin)),
            origin,
            is_context_only=is_context_only(parameters),
        )

    def finalize(self) -> None:
        self.control_channel.close()
        self.service.close()
        self.tracer.close()
