# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `tensorrt_llm` (in-flight batching, decoupled); the logic is in serving.generation."""

from functools import partial

import triton_python_backend_utils as pb_utils

from ensemble_configs.model_names import prefix_of
from ensemble_configs.release import load_release
from serving.census import take_census
from serving.engine_metrics import EngineMetrics
from serving.engine_sources import EngineListener, OwnedEngine
from serving.generation import GenerationService
from serving.lifeline import Lifeline, generation_handlers
from serving.reply_tensors import reply_tensors
from serving.request_metrics import RequestMetrics
from serving.request_parameters import check_release, is_context_only, parameters_of, with_scheduling
from serving.tracing.request_tracer import RequestTracer
from serving.triton_adapter import engine_name, error_response, final_flag, release_folder, start_each


class TritonSink:
    """The replies to one request, as Triton's responses."""

    def __init__(self, sender, trace) -> None:
        self.sender = sender
        self.trace = trace
        self.is_cancelled = sender.is_cancelled

    def send(self, reply) -> None:
        tensors = [pb_utils.Tensor(*named) for named in reply_tensors(reply).items()]
        if reply.is_final and self.trace is not None:
            self.trace.end()
        self.sender.send(pb_utils.InferenceResponse(tensors), flags=final_flag() if reply.is_final else 0)

    def fail(self, error) -> None:
        if self.trace is not None:
            self.trace.end(error)
        self.sender.send(error_response(error), flags=final_flag())


class TritonPythonModel:
    """Takes requests and returns at once; the threads of its replies respond."""

    def initialize(self, args: dict[str, str]) -> None:
        self.tracer = RequestTracer(args)
        folder = release_folder(args)
        self.version = args["model_version"]
        gauges = EngineMetrics(pb_utils.MetricFamily, model=args["model_name"], version=args["model_version"])
        metrics = RequestMetrics(pb_utils.MetricFamily, model=args["model_name"], version=args["model_version"])
        census = partial(
            take_census,
            model=prefix_of(args["model_name"], "tensorrt_llm") + "postprocessing",
            version=self.version,
        )
        release = load_release(folder)
        guests = EngineListener(engine_name(args, step="tensorrt_llm"))
        engine = OwnedEngine(folder, guests, watchdog_s=release.engine.watchdog_s)
        self.service = GenerationService(release, engine, metrics=metrics, on_stats=gauges.update, take_census=census)
        gauges.describe(self.service.info)
        handlers = generation_handlers(self.service, is_engine_up=lambda: self.service.is_engine_up)
        self.lifeline = Lifeline(args, handlers)

    def execute(self, requests: list) -> None:
        start_each(self._start, requests, self.tracer)

    def _start(self, request, *, trace) -> None:
        parameters = parameters_of(request.parameters())
        check_release(parameters, self.version)
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self.service.start(
            with_scheduling(tensors, parameters),
            TritonSink(request.get_response_sender(), trace),
            request_id=request.request_id(),
            is_context_only=is_context_only(parameters),
            timeout_us=request.timeout(),
            trace=trace,
        )

    def finalize(self) -> None:
        self.lifeline.close()
        self.service.close()
        self.tracer.close()
