# SPDX-License-Identifier: Apache-2.0
"""The models behind a frontend, as Triton describes them: their inputs, and whether they answer once or many times."""

import time
from typing import Any, NamedTuple

from tritonclient.grpc import service_pb2

# A change of the served models is seen after this long, and a busy model is not asked for at each request.
_FRESH_S = 1.0
_ASK_S = 5.0
_MAX_KEPT = 1_000


class Model(NamedTuple):
    """The description of one version of a model."""

    inputs: dict[str, tuple[str, tuple[int, ...]]]  # data type and shape; -1: any
    is_decoupled: bool


class ServedModels:
    """The descriptions of models by Triton, kept for a moment."""

    def __init__(self, stub: Any) -> None:
        """Args: `stub` is a `GRPCInferenceServiceStub` of an asyncio channel."""
        self._stub = stub
        self._known: dict[tuple[str, str], tuple[float, Model]] = {}

    async def get(self, name: str, version: str) -> Model:
        """Return the description of a model. Args: `version` may be empty.

        Raises:
            grpc.aio.AioRpcError: the model is not served.
        """
        now_s = time.monotonic()
        known = self._known.get((name, version))
        if known is not None and now_s - known[0] < _FRESH_S:
            return known[1]
        self._known.pop((name, version), None)
        asked = service_pb2.ModelMetadataRequest(name=name, version=version)
        metadata = await self._stub.ModelMetadata(asked, timeout=_ASK_S)
        config = (
            await self._stub.ModelConfig(service_pb2.ModelConfigRequest(name=name, version=version), timeout=_ASK_S)
        ).config
        inputs = {each.name: (each.datatype, tuple(each.shape)) for each in metadata.inputs}
        found = Model(inputs, config.model_transaction_policy.decoupled)
        if len(self._known) >= _MAX_KEPT:
            self._known.clear()
        self._known[name, version] = (now_s, found)
        return found
