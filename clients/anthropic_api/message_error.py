# SPDX-License-Identifier: Apache-2.0
"""The errors of Anthropic's API: what an error that OpenAI's API tells is there, its status and its object."""

import re

from clients.openai_api.api_error import ApiError

_NO_ROOM = 529
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    _NO_ROOM: "overloaded_error",
}
_PARAMS = {"stop": "stop_sequences"}


def message_status(error: ApiError) -> int:
    """Return the HTTP status of an error: a server without room is another one than a limit."""
    return _NO_ROOM if error.code == "overloaded" else error.status


def message_error(error: ApiError) -> dict[str, object]:
    """Return the object that an answer or an event holds."""
    message, theirs = error.message, _PARAMS.get(error.param or "")
    if theirs is not None and error.param is not None:
        said = re.match(rf"{re.escape(error.param)}\b(.*)", message, re.DOTALL)
        message = f"{theirs}: {message}" if said is None else theirs + said[1]
    kind = _TYPES.get(message_status(error), "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
