# SPDX-License-Identifier: Apache-2.0
"""The description of the gateway's API in OpenAPI's form, made of the types that bodies are read into."""

from functools import cache
from typing import Any

import msgspec

from clients.anthropic_api.messages_body import MessagesBody
from clients.openai_api.embeddings_body import EmbeddingsBody
from clients.openai_api.request_bodies import ChatBody, CompletionBody
from clients.openai_api.responses_body import ResponseBody

_BODIES: dict[str, tuple[type[msgspec.Struct], str]] = {
    "/v1/chat/completions": (ChatBody, "Answer a chat, whole or as server-sent events"),
    "/v1/completions": (CompletionBody, "Go on with a text or several, whole or as server-sent events"),
    "/v1/responses": (ResponseBody, "Answer a conversation that nobody keeps, whole or as server-sent events"),
    "/v1/messages": (MessagesBody, "Answer a conversation in Anthropic's form, whole or as server-sent events"),
    "/v1/embeddings": (EmbeddingsBody, "Make a vector of each of some texts"),
}
_READ = {
    "/v1/models": "List the models that the caller may use",
    "/v1/models/{model}": "Describe a model",
    "/health/live": "Say that the process answers",
    "/health/ready": "Say whether every model takes requests",
    "/metrics": "Return the metrics as text for Prometheus",
    "/admin/status": "Return the figures of this moment: models, servers, rollout",
    "/openapi.json": "Return this description",
}
_OPEN = frozenset({"/health/live", "/health/ready", "/openapi.json"})
_ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
    },
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "string"},
            },
        }
    },
}


@cache
def description() -> dict[str, Any]:
    """Return the description, OpenAPI 3.1."""
    kinds = [kind for kind, _ in _BODIES.values()]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    components |= {"Error": _ERROR, "AnthropicError": _ANTHROPIC_ERROR}
    paths: dict[str, Any] = {
        path: {"post": _posted(path, schema, summary)}
        for (path, (_, summary)), schema in zip(_BODIES.items(), schemas, strict=True)
    }
    for path, summary in _READ.items():
        paths.setdefault(path, {})["get"] = _read(path, summary)
    paths["/v1/responses"]["get"] = {
        "summary": "Hold conversations over a WebSocket: messages of the type response.create are answered by events",
        "responses": {"101": {"description": "the connection is a WebSocket now"}, **_errors(401, 405, 500, 503)},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Trireme gateway", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "anthropic_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"key": []}],
    }


def _posted(path: str, schema: dict[str, Any], summary: str) -> dict[str, Any]:
    statuses = (400, 401, 403, 404, 413, 429, 500, 502, 503, 504)
    is_anthropic = path == "/v1/messages"
    events: dict[str, Any] = {} if path == "/v1/embeddings" else {"text/event-stream": {}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "the answer",
                "content": {"application/json": {"schema": {"type": "object"}}, **events},
            },
            **(_errors(*statuses, 529, schema="AnthropicError") if is_anthropic else _errors(*statuses)),
        },
    }


def _read(path: str, summary: str) -> dict[str, Any]:
    is_open = path in _OPEN
    content = {"text/plain": {}} if path == "/metrics" else {"application/json": {"schema": {"type": "object"}}}
    found: dict[str, Any] = {
        "summary": summary,
        "responses": {"200": {"description": "the answer", "content": content}},
    }
    if path == "/health/ready":
        found["responses"]["503"] = {"description": "not every model is ready", "content": content}
        found["responses"] |= _errors(400)
        found["parameters"] = [
            {"name": "models", "in": "query", "required": False, "schema": {"type": "string", "enum": ["all", "any"]}}
        ]
    if is_open:
        found["security"] = []
    else:
        found["responses"] |= _errors(401, 403, 500, 503)
    if "{model}" in path:
        found["responses"] |= _errors(404)
        found["parameters"] = [
            {"name": "model", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[^/]{1,64}$"}}
        ]
    return found


def _errors(*statuses: int, schema: str = "Error") -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {str(status): {"description": "an error, as its API has them", "content": content} for status in statuses}
