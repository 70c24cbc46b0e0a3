# SPDX-License-Identifier: Apache-2.0
"""The answers of the server in OpenAI's form, and the lines of the results that hold an answer or an error."""

from collections.abc import Sequence

import msgspec

from clients.batch.batch_line import CHAT, BatchLine
from clients.batch.line_error import LineError
from clients.batch.openai_bodies import Asked
from clients.infer_messages import GenerateChunk
from trireme.base.errors import ServerError

_REASONS = {"stop_string": "stop"}  # OpenAI does not tell them apart


class Usage(msgspec.Struct, frozen=True):
    """The tokens as the server counted them; each prompt once, however many answers it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def body_of(
    line: BatchLine,
    asked: Asked,
    received: Sequence[Sequence[GenerateChunk]],
    *,
    result_id: str,
    now_s: float,
    model: str,
) -> tuple[dict[str, object], Usage]:
    """Return the body of an answer, and the tokens that it took.

    Args:
        received: by request, the chunks of all its sequences.
        result_id: id of the line's result, so that a line has one name in every attempt.
        now_s: Unix time.
        model: name of the model in the answer.

    Raises:
        ServerError: the server did not send what was asked for.
    """
    is_chat = line.url == CHAT
    choices: list[dict[str, object]] = []
    num_input = num_output = 0
    for chunks in received:
        num_input += next((chunk.num_input_tokens for chunk in chunks if chunk.num_input_tokens is not None), 0)
        for index in range(asked.n):
            own = _of(chunks, index)
            text = "".join(chunk.text for chunk in own)
            reason = next((chunk.finish_reason for chunk in reversed(own) if chunk.finish_reason), None)
            if reason is None:
                raise ServerError("the server ended an answer without saying why (finish_reason)")
            num_output += sum(chunk.num_output_tokens or 0 for chunk in own)
            said = {"message": {"role": "assistant", "content": text, "refusal": None}} if is_chat else {"text": text}
            said_reason = _REASONS.get(reason, reason)
            choices.append({"index": len(choices), **said, "logprobs": None, "finish_reason": said_reason})
    usage = Usage(num_input, num_output, num_input + num_output)
    body = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{result_id}",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": int(now_s),
        "model": model,
        "choices": choices,
        "usage": msgspec.to_builtins(usage),
    }
    return body, usage


def num_shortened(asked: Asked, received: Sequence[Sequence[GenerateChunk]]) -> int:
    """Return how many answers a limit of the server cut below the length that the line allowed."""
    found = 0
    for request, chunks in zip(asked.requests, received, strict=True):
        for index in range(asked.n):
            own = _of(chunks, index)
            is_at_limit = any(chunk.finish_reason == "length" for chunk in own)
            found += is_at_limit and sum(chunk.num_output_tokens or 0 for chunk in own) < request.max_tokens
    return found


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
        kind = "invalid_request_error" if error.status < 500 else "server_error"
        said = {"message": error.message, "type": kind, "param": error.param, "code": error.code}
        response = {"status_code": error.status, "request_id": result_id, "body": {"error": said}}
    why = {"code": error.code, "message": error.message, "param": error.param, "line": number}
    return _line({"id": result_id, "custom_id": custom_id, "response": response, "error": why})


def _line(fields: dict[str, object]) -> bytes:
    return msgspec.json.encode(fields) + b"\n"


def _of(chunks: Sequence[GenerateChunk], index: int) -> list[GenerateChunk]:
    return [chunk for chunk in chunks if (chunk.sequence_index or 0) == index]
