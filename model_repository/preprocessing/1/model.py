# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `preprocessing` (text to tokens); the logic is in serving.prompt_step."""

import triton_python_backend_utils as pb_utils

from serving.lifeline import Lifeline
from serving.prompt_step import PromptStep
from serving.triton_adapter import guarded, release_folder


class TritonPythonModel:
    """One request, one response."""

    def initialize(self, args: dict[str, str]) -> None:
        self.step = PromptStep.from_release(release_folder(args))
        self.lifeline = Lifeline(args, {"status": lambda: {"num_streams": 0}})

    def execute(self, requests: list) -> list:
        return [guarded(self._respond, request) for request in requests]

    def _respond(self, request):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return pb_utils.InferenceResponse([pb_utils.Tensor(*named) for named in self.step.prepare(tensors).items()])

    def finalize(self) -> None:
        self.lifeline.close()
