# SPDX-License-Identifier: Apache-2.0
"""The lines of the results: an answer, or an error."""

import msgspec

from clients.batch.line_error import LineError
from clients.openai_api.api_error import ApiError


def answer_line(result_id: str, custom_id: str, body: dict[str, object]) -> bytes:
    """Return a line of the results, newline included."""
    response = {"status_code": 200, "request_id": result_id, "body": body}
    return _line({"id": result_id, "custom_id": custom_id, "response": response, "error": None})


def error_line(result_id: str, number: int, custom_id: str | None, error: LineError) -> bytes:
    """Return a line of the results for a request that failed.

    `error` always says why. Where the server was asked, `response` has OpenAI's form of it too: status and body.
    """
    response = None
    if error.status is not None:
        said = ApiError(error.message, code=error.code, param=error.param, status=error.status)
        response = {"status_code": error.status, "request_id": result_id, "body": said.body()}
    why = {"code": error.code, "message": error.message, "param": error.param, "line": number}
    return _line({"id": result_id, "custom_id": custom_id, "response": response, "error": why})


def _line(fields: dict[str, object]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"
