# SPDX-License-Identifier: Apache-2.0
"""The errors of OpenAI's API: the object in an answer, and what the errors of a server become."""

from collections.abc import Mapping

import msgspec

from trireme.base.errors import (
    AccessDenied,
    RequestCancelled,
    RequestError,
    RequestTimeout,
    ServingError,
    SpecError,
    Unavailable,
)

_MAX_SHOWN = 80
# Refusals for want of room: the next try may find it. What else is unavailable is a fault of the server.
NO_ROOM = frozenset({"queue_full", "overload", "shedding", "queue_timeout_ms", "long_prompts"})
# A header of refusals that reached no model: whoever stands before several gateways may ask another one.
NOT_BEGUN = "x-trireme-not-begun"
_RETRY_S = 1.0
_OTHERS: tuple[tuple[type[ServingError], str, int], ...] = (
    (RequestTimeout, "timeout", 504),
    (RequestCancelled, "cancelled", 503),
    (AccessDenied, "server_error", 502),
)
# Faults of whoever runs this: their texts name files and addresses, which are no caller's business.
_OF_THE_OPERATOR = {
    AccessDenied: "the server behind this address does not accept it; the reason is in the log here",
    SpecError: "a file of this server cannot be used; the reason is in its log",
}
# Parameters by their names in the serving contract.
_PARAMS = {
    "end_id": "ignore_eos",
    "num_return_sequences": "n",
    "release": "model",  # as in `chat@7`
    "return_log_probs": "logprobs",
    "stop_words": "stop",
}
_GUIDES = frozenset({"guide", "guide_type", "guided_decoding_guide", "guided_decoding_guide_type"})
_PROMPTS = frozenset({"input_ids", "messages", "text_input"})
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """An error as OpenAI's API tells of it.

    Args:
        message: what is wrong, what is allowed and the next step; with a `param` it begins with the parameter.
        code: the kind of error for a program, in snake_case.
        param: the parameter that is wrong, such as `messages[0].content`.
        status: of HTTP.
        retry_after_s: when the same request may be tried again; None: nobody knows, or it would be refused again.
        headers: of the answer, beside those of every error.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        param: str | None = None,
        status: int = 400,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.code, self.param, self.status = message, code, param, status
        self.retry_after_s, self.headers = retry_after_s, dict(headers or {})

    def body(self) -> dict[str, object]:
        """Return the object that an answer or an event holds."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def api_error(error: ServingError, *, is_chat: bool = False, guide_param: str = "response_format") -> ApiError:
    """Return what an error of the server is in OpenAI's API.

    Args:
        is_chat: the prompt was messages.
        guide_param: name of the body's field that the guide was made of.
    """
    if isinstance(error, RequestError):
        return _wrong(error, is_chat=is_chat, guide_param=guide_param)
    if isinstance(error, Unavailable):
        return _unavailable(error)
    code, status = next(
        ((code, status) for kind, code, status in _OTHERS if isinstance(error, kind)), ("server_error", 500)
    )
    return ApiError(_OF_THE_OPERATOR.get(type(error), error.message), code=code, status=status)


def is_of_the_operator(error: ServingError) -> bool:
    """Return whether an error is told to a log alone, and not to the caller."""
    return type(error) in _OF_THE_OPERATOR


def _wrong(error: RequestError, *, is_chat: bool, guide_param: str) -> ApiError:
    """Return the error of a request that the server refuses; the parameter has its name in the caller's body."""
    field = error.facts.get("field")
    if field is None:
        return ApiError(error.message, code="invalid_value")
    param = _PARAMS.get(str(field), str(field))
    if field in _PROMPTS:
        param = "messages" if is_chat else "prompt"
    if field in _GUIDES:
        param = guide_param
    is_too_long = field in _PROMPTS and "max" in error.facts
    message = error.message if error.message.startswith(param) else f"{param}: {error.message}"
    return ApiError(message, code="context_length_exceeded" if is_too_long else "invalid_value", param=param)


def _unavailable(error: Unavailable) -> ApiError:
    hint_ms = error.facts.get("retry_after_ms")
    retry_s = hint_ms / 1000 if isinstance(hint_ms, int | float) else _RETRY_S
    if error.facts.get("reason") in NO_ROOM:
        return ApiError(error.message, code="overloaded", status=429, retry_after_s=retry_s)
    return ApiError(error.message, code="unavailable", status=503, retry_after_s=retry_s)


def body_of_json(data: bytes, *, what: str = "the body") -> dict[str, object]:
    """Return the object that a body holds. Args: `what`: name of the body in messages.

    Raises:
        ApiError: it is not JSON, or no object.
    """
    try:
        body = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ApiError(f"{what} is not JSON: {exc}", code="invalid_json") from exc
    if not isinstance(body, dict):
        raise ApiError(f"{what} must be a JSON object, got {shown(body)}", code="invalid_json")
    return body


def shown(value: object) -> str:
    """Return a value as messages show it; a long one is cut."""
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[: _MAX_SHOWN - 3]}..."
