# SPDX-License-Identifier: Apache-2.0
"""The answers of the server in OpenAI's form, where they come whole."""

from collections.abc import Sequence

import msgspec

from clients.infer_messages import GenerateChunk
from clients.openai_api.asked import Asked
from trireme.base.errors import ServerError

_REASONS = {"stop_string": "stop"}  # OpenAI does not tell them apart


class Usage(msgspec.Struct, frozen=True):
    """The tokens as the server counted them; each prompt once, however many answers it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


def answer_body(
    asked: Asked,
    received: Sequence[Sequence[GenerateChunk]],
    *,
    answer_id: str,
    now_s: float,
    model: str,
) -> tuple[dict[str, object], Usage]:
    """Return the body of an answer, and the tokens that it took.

    Args:
        received: by request, the chunks of all its sequences.
        answer_id: name of the answer, without the prefix of its kind.
        now_s: Unix time.
        model: name of the model in the answer.

    Raises:
        ServerError: the server did not send what was asked for.
    """
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
            said = (
                {"message": {"role": "assistant", "content": text, "refusal": None}}
                if asked.is_chat
                else {"text": text}
            )
            choices.append({"index": len(choices), **said, "logprobs": None, "finish_reason": reason_of(reason)})
    usage = Usage(num_input, num_output, num_input + num_output)
    body = {
        "id": id_of(asked, answer_id),
        "object": "chat.completion" if asked.is_chat else "text_completion",
        "created": int(now_s),
        "model": model,
        "choices": choices,
        "usage": msgspec.to_builtins(usage),
    }
    return body, usage


def id_of(asked: Asked, answer_id: str) -> str:
    """Return the id of an answer, with the prefix of its kind."""
    return f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{answer_id}"


def reason_of(finish_reason: str) -> str:
    """Return OpenAI's word for why an answer ended."""
    return _REASONS.get(finish_reason, finish_reason)


def num_shortened(asked: Asked, received: Sequence[Sequence[GenerateChunk]]) -> int:
    """Return how many answers a limit of the server cut below the length that the line allowed."""
    found = 0
    for request, chunks in zip(asked.requests, received, strict=True):
        for index in range(asked.n):
            own = _of(chunks, index)
            is_at_limit = any(chunk.finish_reason == "length" for chunk in own)
            found += is_at_limit and sum(chunk.num_output_tokens or 0 for chunk in own) < request.max_tokens
    return found


def _of(chunks: Sequence[GenerateChunk], index: int) -> list[GenerateChunk]:
    return [chunk for chunk in chunks if (chunk.sequence_index or 0) == index]
