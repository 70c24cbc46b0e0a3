# SPDX-License-Identifier: Apache-2.0
"""Triton adapter of an embedding model, copied into its version folder; the logic is in `embedding_service`."""

from functools import partial
from typing import Any

import triton_python_backend_utils as pb_utils

from serving.embeddings.embedding_service import AskedEmbeddings, EmbeddingService, Result
from serving.pipeline.triton_adapter import guarded, release_folder
from serving.process.control_channel import ControlChannel, generation_handlers
from serving.process.server_log import set_up_adapter_log
from trireme.base.errors import ServingError


class TritonPythonModel:
    """Embeddings: the requests that Triton has joined are one batch, with a response each."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model."""
        set_up_adapter_log(args)
        self.service = EmbeddingService.load(release_folder(args))
        self.control_channel = ControlChannel(args, generation_handlers(self.service))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response for each request."""
        asked = [
            AskedEmbeddings({tensor.name(): tensor.as_numpy() for tensor in each.inputs()}, each.is_cancelled)
            for each in requests
        ]
        results = self.service.embed(asked)
        return [guarded(partial(_response, result), each) for result, each in zip(results, requests, strict=True)]

    def finalize(self) -> None:
        """Stop listening."""
        self.control_channel.close()


def _response(result: Result | ServingError, request: Any) -> Any:
    if isinstance(result, ServingError):
        raise result
    wanted = request.requested_output_names()
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, result[name]) for name in result if name in wanted])
