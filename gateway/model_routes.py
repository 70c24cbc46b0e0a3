# SPDX-License-Identifier: Apache-2.0
"""The paths that say which models there are, and what the API is."""

import time
from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from gateway.access.caller import Caller
from gateway.callers_api import is_anthropic
from gateway.json_answers import json_answer
from gateway.openapi import description
from gateway.served_models import ServedModel, ServedModels


class ModelRoutes:
    """The handlers of the list of models and of the API's description."""

    def __init__(self, models: ServedModels) -> None:
        self._models = models
        self._begun_s = int(time.time())

    async def list_models(self, request: web.BaseRequest, _body: bytes, caller: Caller) -> web.StreamResponse:
        """Return the list of the models that the caller may use."""
        found = [self._described(model) for model in self._models.allowed(caller)]
        found += [self._described(model, name) for name, model in self._models.allowed_aliases(caller).items()]
        found += [self._described_tier(tier.name) for tier in self._models.tiers.allowed(caller)]
        if is_anthropic(request):
            data = [_for_anthropic(model) for model in found]
            ends = (
                {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
            )
            return json_answer({"data": data, "has_more": False, **ends})
        return json_answer({"object": "list", "data": found})

    async def describe_model(self, request: web.BaseRequest, _body: bytes, caller: Caller) -> web.StreamResponse:
        """Return one model.

        Raises:
            ApiError: there is no such model, or the caller may not use it.
        """
        name = request.path.removeprefix("/v1/models/")  # an alias may have a slash
        if self._models.tiers.find(name, caller) is not None:
            found = self._described_tier(name)
        else:
            found = self._described(self._models.get(name, caller), name)
        return json_answer(_for_anthropic(found) if is_anthropic(request) else found)

    async def describe_api(self, _request: web.BaseRequest, _body: bytes, _caller: Caller) -> web.StreamResponse:
        """Return the description of the API in OpenAPI's form."""
        return json_answer(description())

    def _described_tier(self, name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": self._begun_s, "owned_by": "trireme"}

    def _described(self, model: ServedModel, name: str = "") -> dict[str, Any]:
        """Return a model by its own name, or by an alias or as a release, which have the model as their `root`."""
        limit = {} if model.max_seq_len is None else {"max_model_len": model.max_seq_len}
        kind = {} if model.embedding is None else {"task": "embedding"}  # others write text
        root = {"root": model.name} if name not in {"", model.name} else {}
        return (
            {"id": name or model.name, "object": "model", "created": self._begun_s, "owned_by": "trireme"}
            | root
            | limit
            | kind
        )


def _for_anthropic(model: dict[str, Any]) -> dict[str, Any]:
    """Return a model as Anthropic's API describes it."""
    created = datetime.fromtimestamp(model["created"], UTC)
    return {
        "type": "model",
        "id": model["id"],
        "display_name": model["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
    }
