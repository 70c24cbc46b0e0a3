# SPDX-License-Identifier: Apache-2.0
"""The API that a caller speaks, OpenAI's or Anthropic's: where its key is, and how it is told of errors."""

from aiohttp import web

from clients.anthropic_api.message_error import message_error, message_status
from clients.openai_api.api_error import ApiError
from gateway.json_answers import error_answer, error_headers, json_answer

_MESSAGES = "/v1/messages"


def is_anthropic(request: web.BaseRequest) -> bool:
    """Return whether a caller speaks Anthropic's API: by the path, or the version that its clients send."""
    return request.path.startswith(_MESSAGES) or "anthropic-version" in request.headers


def authorization_of(request: web.BaseRequest) -> str:
    """Return the header `Authorization` of a request, or what it would be with the key of `x-api-key`; "": neither."""
    given = request.headers.get("Authorization", "")
    if given or not is_anthropic(request):
        return given
    key = request.headers.get("x-api-key", "")
    return f"Bearer {key}" if key else ""


def error_answer_for(request: web.BaseRequest, error: ApiError) -> web.Response:
    """Return the answer of an error in the form of its caller's API."""
    if not is_anthropic(request):
        return error_answer(error)
    return json_answer(message_error(error), status=message_status(error), headers=error_headers(error))
