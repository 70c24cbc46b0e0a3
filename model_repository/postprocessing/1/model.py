# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of `postprocessing` (tokens to exact text); the logic is in serving.pipeline.text_step."""

import triton_python_backend_utils as pb_utils

from serving.pipeline.text_step import TextStep
from serving.pipeline.triton_adapter import guarded, release_folder
from serving.process.control_channel import ControlChannel
from serving.process.server_log import set_up_adapter_log


class TritonPythonModel:
    """Postprocessing: one request for each chunk of a stream, one response each, in order."""

    def initialize(self, args: dict[str, str]) -> None:
        set_up_adapter_log(args)
        self.step = TextStep.from_release(release_folder(args))
        self.control_channel = ControlChannel(args, {"status": lambda: {"num_streams": self.step.num_streams}})

    def execute(self, requests: list) -> list:
        return [guarded(self._respond, request) for request in requests]

    def _respond(self, request):
        tensors = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT", self.step.respond(tensors, request.is_cancelled))])

    def finalize(self) -> None:
        self.control_channel.close()
