# SPDX-License-Identifier: Apache-2.0
"""Answers of JSON: objects, and errors as OpenAI's API tells of them."""

import math

import msgspec
from aiohttp import web

from clients.openai_api.api_error import ApiError


def json_answer(body: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """Return the answer of an object."""
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json", headers=headers)


def error_answer(error: ApiError) -> web.Response:
    """Return the answer of an error; official clients wait for `Retry-After` before they try again."""
    return json_answer(error.body(), status=error.status, headers=error_headers(error))


def error_headers(error: ApiError) -> dict[str, str]:
    """Return the headers of an error's answer."""
    headers = dict(error.headers)
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    if error.status == 401:
        headers.setdefault("WWW-Authenticate", "Bearer")
    return headers
