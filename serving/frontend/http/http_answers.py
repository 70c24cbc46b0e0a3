# SPDX-License-Identifier: Apache-2.0
"""The errors over HTTP: Triton's status codes, and its JSON object with the text."""

import json
import re

import grpc
from aiohttp import web

from trireme.base.errors import ServingError, Unavailable

_TOKEN = re.compile(r"\[([A-Z_]+)[ \]]")
_BY_CODE = {"INVALID_ARG": 400, "INVALID_SPEC": 400, "UNAVAILABLE": 503, "DEADLINE": 503, "CANCELLED": 499}
_BY_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 413,
    grpc.StatusCode.CANCELLED: 499,
    grpc.StatusCode.UNIMPLEMENTED: 501,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
# Texts of Triton's errors that are not the request's fault; errors in a stream carry no code.
_NOT_THE_REQUESTS = ("Stub process", "no available versions", "is not ready")
_RETRY_S = "1"


def error_body(text: str) -> bytes:
    """Return Triton's JSON object for an error."""
    return json.dumps({"error": text}, ensure_ascii=False).encode()


def error_answer(status: int, text: str) -> web.Response:
    """Return an error's whole response."""
    headers = {"Retry-After": _RETRY_S} if status == 503 else {}
    return web.Response(status=status, body=error_body(text), content_type="application/json", headers=headers)


def answer_to(error: ServingError) -> web.Response:
    """Return the response for an error of Trireme's own."""
    return error_answer(_BY_CODE.get(error.code, 500), str(error))


def answer_to_status(error: grpc.aio.AioRpcError) -> web.Response:
    """Return the response for an error of Triton's, or of the connection to it."""
    text = error.details() or str(error.code())
    if error.code() is grpc.StatusCode.UNAVAILABLE and not _TOKEN.search(text):
        text = str(Unavailable(f"the server does not answer ({text}); try again", reason="no_answer"))
    return error_answer(_BY_STATUS.get(error.code(), 500), text)


def status_of(text: str) -> int:
    """Return the status of an error that came in a stream, by its token, or by Triton's text."""
    token = _TOKEN.search(text)
    if token is not None and token[1] in _BY_CODE:
        return _BY_CODE[token[1]]
    if token is not None and token[1] == "INTERNAL":
        return 500
    return 503 if any(each in text for each in _NOT_THE_REQUESTS) else 400
