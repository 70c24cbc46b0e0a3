# SPDX-License-Identifier: Apache-2.0
"""The errors of an OpenAI-compatible server, from its answer or its stream, as errors of this package."""

import email.utils
import os
import time
from typing import Any

import msgspec

from clients.access import NO_ACCESS, Access, redacted
from clients.access_errors import refused_status
from trireme.base.errors import RequestError, RequestTimeout, ServerError, ServingError, Unavailable

API_KEY_VARIABLE = "OPENAI_API_KEY"
_REFUSALS = {429: "refused", 502: "unreachable", 503: "refused"}
_TIMEOUTS = (408, 504)
_SHOWN = 300  # characters of what a server says of an error


def stream_error(data: bytes) -> ServingError:
    """Return the error that an event stands for."""
    said = _decoded(data)
    inner = said.get("error") if isinstance(said, dict) else None
    code = (inner if isinstance(inner, dict) else said if isinstance(said, dict) else {}).get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 500
    return http_error(status, data)


def http_error(status: int, body: bytes, retry_after: str = "", *, access: Access = NO_ACCESS) -> ServingError:
    """Return the error that an answer with a status other than `OK` stands for.

    Args:
        retry_after: the header `Retry-After`.
        access: certificates and the key of the request.
    """
    message = f"HTTP {status}: {_message(body)}"
    if denied := refused_status(status, message, access):
        return denied
    if status in _REFUSALS:
        return Unavailable(message, reason=_REFUSALS[status], retry_after_ms=_retry_after_ms(retry_after))
    if status in _TIMEOUTS:
        return RequestTimeout(message)
    return (RequestError if 400 <= status < 500 else ServerError)(message, status=status)


def _message(body: bytes) -> str:
    """Return the message of an error in words; most servers have it in `error.message`, some elsewhere."""
    said = _decoded(body)
    for name in ("error", "message", "detail"):
        if isinstance(said, dict) and said.get(name):
            said = said[name]
    return shown(body if isinstance(said, dict | list) or not said else str(said).encode())


def shown(said: bytes) -> str:
    """Return what a server said on one line, without the key."""
    text = redacted(" ".join(said.decode(errors="replace").split()))
    key = api_key()
    return (text.replace(key, "...") if key else text)[:_SHOWN] or "the server gave no reason"


def api_key() -> str | None:
    """Return the key in OPENAI_API_KEY, the variable of OpenAI's own clients; None: there is none."""
    return os.environ.get(API_KEY_VARIABLE) or None


def _decoded(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.MsgspecError:
        return data.decode(errors="replace")


def _retry_after_ms(header: str) -> int | None:
    """Return the milliseconds that a header means, given as seconds or as a date."""
    if header.replace(".", "", 1).isdecimal():
        return round(float(header) * 1000)
    try:
        at = email.utils.parsedate_to_datetime(header)
    except ValueError:
        return None
    return max(0, round((at.timestamp() - time.time()) * 1000))
