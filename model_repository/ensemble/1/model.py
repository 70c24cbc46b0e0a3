# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `ensemble` (text to text, decoupled); the logic is in serving.text_pipeline."""

import triton_python_backend_utils as pb_utils

from ensemble_configs.release import load_release
from serving.detokenization import TextDecoder
from serving.engine_sources import SharedEngine
from serving.generation import GenerationService
from serving.lifeline import Lifeline, generation_handlers
from serving.prompt_step import PromptStep
from serving.request_metrics import RequestMetrics
from serving.text_pipeline import TextPipeline
from serving.triton_adapter import error_response, final_flag, release_folder, start_each


class TritonSink:
    """The responses to one request."""

    def __init__(self, sender) -> None:
        self.sender = sender
        self.is_cancelled = sender.is_cancelled

    def send(self, tensors, *, is_final) -> None:
        response = pb_utils.InferenceResponse([pb_utils.Tensor(*named) for named in tensors.items()])
        self.sender.send(response, flags=final_flag() if is_final else 0)

    def fail(self, error) -> None:
        self.sender.send(error_response(error), flags=final_flag())


class TritonPythonModel:
    """Takes requests and returns at once; the engine's reader thread responds."""

    def initialize(self, args: dict[str, str]) -> None:
        folder = release_folder(args)
        release = load_release(folder)
        prompt_step, decoder = PromptStep.from_release(folder), TextDecoder.from_spec(release.tokenizer)
        metrics = RequestMetrics(pb_utils.MetricFamily, model=args["model_name"], version=args["model_version"])
        engine = SharedEngine(args["model_version"])
        self.service = GenerationService(release, engine, metrics=metrics, client_check_s=0.12)
        self.pipeline = TextPipeline(self.service, prompt_step, decoder)
        self.lifeline = Lifeline(args, generation_handlers(self.service))

    def execute(self, requests: list) -> None:
        start_each(self._start, requests)

    def _start(self, request) -> None:
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        self.pipeline.start(tensors, TritonSink(request.get_response_sender()), request_id=request.request_id())

    def finalize(self) -> None:
        self.lifeline.close()
        self.service.close()
