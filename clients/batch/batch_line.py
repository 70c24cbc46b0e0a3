# SPDX-License-Identifier: Apache-2.0
"""The lines of OpenAI's batch format, checked: id, endpoint and body; what a body asks for."""

import contextlib

import msgspec

from clients.batch.input_file import MAX_LINE_BYTES
from clients.batch.line_error import LineError
from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import ApiError, body_of_json, shown
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.body_fields import Refused
from clients.openai_api.request_bodies import requests_of

_ENDPOINTS = (Endpoint.COMPLETIONS, Endpoint.CHAT)
_WHOLE, _OWN_CLASS = "an answer of a batch comes whole", "a batch is of a class of its own"
_NO_CALLS = "calls of tools are not read in a batch"
_NO_TOKENS = "the texts of tokens are not known to a batch; ask the gateway"
_REFUSED: Refused = {
    "stream": ((False,), _WHOLE),
    "stream_options": ((), _WHOLE),
    "service_tier": (("auto", "default", "flex"), _OWN_CLASS),
    "priority": ((3,), _OWN_CLASS),
    "tools": (([],), _NO_CALLS),
    "tool_choice": (("none", "auto"), _NO_CALLS),
    "parallel_tool_calls": ((True, False), _NO_CALLS),
    "logprobs": ((False,), _NO_TOKENS),
}
_FIELDS = ("custom_id", "method", "url", "body")


class BatchLine(msgspec.Struct, frozen=True):
    """The request of a line."""

    number: int  # in its file, from 1
    custom_id: str
    url: str
    body: dict[str, object]


def parse_line(number: int, line: bytes | None) -> BatchLine:
    """Check a line of the file; None: it was too long to be read.

    Raises:
        LineError: it names the field, its value and what is allowed.
    """
    if line is None:
        message = f"the line has more than {MAX_LINE_BYTES} bytes; split its request"
        raise LineError(message, code="line_too_long")
    fields = _object(line)
    for name in _FIELDS:
        if name not in fields:
            raise LineError(f"{name} is missing; a line has {', '.join(_FIELDS)}", code="missing_field", param=name)
    for name in fields.keys() - set(_FIELDS):
        raise _invalid(name, f"{name} is not a field of a batch line; a line has {', '.join(_FIELDS)}")
    custom_id, method, url, body = (fields[name] for name in _FIELDS)
    if not isinstance(custom_id, str) or not custom_id:
        raise _invalid("custom_id", f"custom_id must be text that is not empty, got {shown(custom_id)}")
    if method != "POST":
        raise _invalid("method", f"method must be 'POST', got {shown(method)}")
    if url not in _ENDPOINTS:
        raise LineError(
            f"url must be {' or '.join(_ENDPOINTS)}, got {shown(url)}; other endpoints are not served",
            code="invalid_url",
            param="url",
        )
    if not isinstance(body, dict):
        raise _invalid("body", f"body must be an object, got {shown(body)}")
    return BatchLine(number, custom_id, str(url), body)


def asked_by(line: BatchLine, *, base: GenerateRequest, chat_tokens: int, served_model: str | None = None) -> Asked:
    """Return the requests of a line.

    Args:
        base: what all requests have in common: class, tenant, limits.
        chat_tokens: limit of a chat line that has none of its own.
        served_model: the only name of a model that a line may have; None: any.

    Raises:
        LineError: it names the parameter, its value and what is allowed.
    """
    try:
        asked = requests_of(Endpoint(line.url), line.body, base=base, chat_tokens=chat_tokens, refused=_REFUSED)
    except ApiError as exc:
        where = "body." if exc.param else ""
        raise LineError(where + exc.message, code=exc.code, param=f"body.{exc.param}" if exc.param else "body") from exc
    if served_model is not None and asked.model != served_model:
        message = f"body.model must be {served_model!r} (--served-model), got {asked.model!r}"
        raise LineError(message, code="model_not_found", param="body.model")
    return asked


def custom_id_of(line: bytes | None) -> str | None:
    """Return the custom_id of a line that may be wrong in any way; None where it has none."""
    with contextlib.suppress(LineError):
        custom_id = _object(line or b"").get("custom_id")
        return custom_id if isinstance(custom_id, str) else None
    return None


def _object(line: bytes) -> dict[str, object]:
    try:
        return body_of_json(line, what="the line")
    except ApiError as exc:
        raise LineError(exc.message, code=exc.code) from exc


def _invalid(param: str, message: str) -> LineError:
    return LineError(message, code="invalid_value", param=param)
