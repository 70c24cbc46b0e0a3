# SPDX-License-Identifier: Apache-2.0
"""The paths for probes and Prometheus."""

import logging

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from gateway.access.caller import Caller
from gateway.gateway_metrics import GatewayMetrics
from gateway.generation import Generation
from gateway.json_answers import json_answer
from gateway.served_models import ServedModel, ServedModels
from trireme.base.errors import AccessDenied

_log = logging.getLogger("trireme.gateway")


class HealthRoutes:
    """The handlers of probes and of the metrics.

    Attributes:
        is_stopping: no new requests should come; whoever asks is told "not ready".
    """

    def __init__(self, models: ServedModels, generation: Generation, metrics: GatewayMetrics) -> None:
        self._models, self._generation, self._metrics = models, generation, metrics
        self.is_stopping = False

    async def live(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Say that the process answers."""
        return json_answer({"is_live": True})

    async def ready(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Say whether a request would find its model; 200 if every model is ready."""
        models = {model.name: await self._is_ready(model) for model in self._models}
        is_ready = all(models.values()) and not self.is_stopping
        body = {"is_ready": is_ready, "is_stopping": self.is_stopping, "models": models}
        return json_answer(body, status=200 if is_ready else 503)

    async def metrics(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Return the metrics as text for Prometheus."""
        return web.Response(body=self._metrics.page(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _is_ready(self, model: ServedModel) -> bool:
        try:
            return await self._generation.is_ready(model)
        except AccessDenied as exc:
            _log.error("the server refuses this gateway: %s", exc.message)
            return False
