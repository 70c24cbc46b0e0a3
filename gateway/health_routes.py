# SPDX-License-Identifier: Apache-2.0
"""The paths for probes and Prometheus."""

import logging

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from clients.openai_api.api_error import ApiError, shown
from gateway.access.caller import Caller
from gateway.gateway_metrics import GatewayMetrics
from gateway.generation import Generation
from gateway.json_answers import json_answer
from gateway.served_models import ServedModel, ServedModels
from trireme.base.errors import AccessDenied

_log = logging.getLogger("trireme.gateway")


class HealthRoutes:
    """The handlers of probes and of the metrics.

    Args:
        has_others: whether managed APIs answer where no server can.

    Attributes:
        is_stopping: no new requests should come; whoever asks is told "not ready".
    """

    def __init__(
        self, models: ServedModels, generation: Generation, metrics: GatewayMetrics, *, has_others: bool = False
    ) -> None:
        self._models, self._generation, self._metrics = models, generation, metrics
        self._has_others = has_others
        self.is_stopping = False

    async def live(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Say that the process answers."""
        return json_answer({"is_live": True})

    async def ready(self, request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Say whether a request would find its model; 200 if every model is, with `?models=any` if one can answer.

        The second is for who takes all requests away from a gateway that is not ready: it is no worse than others where
        one of several models is away, or where managed APIs answer.

        Raises:
            ApiError: `models` is something else.
        """
        is_any = _is_any(request)
        models = {model.name: await self._is_ready(model) for model in self._models}
        can_answer = any(models.values()) or self._has_others if is_any else all(models.values())
        is_ready = can_answer and not self.is_stopping
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


def _is_any(request: web.BaseRequest) -> bool:
    asked = request.query.getall("models", ["all"])
    if asked not in (["all"], ["any"]):
        raise ApiError(
            f"models must be all or any, got {shown(asked[-1])}; leave it out for all",
            code="invalid_value",
            param="models",
        )
    return asked == ["any"]
