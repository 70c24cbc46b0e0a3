# SPDX-License-Identifier: Apache-2.0
"""The answers of chats and text completions, where they come whole."""

from collections.abc import Sequence

from clients.infer_messages import GenerateChunk
from clients.openai_api.answer_deltas import AnswerDeltas, Piece, Usage
from clients.openai_api.asked import Asked
from clients.openai_api.log_probs import TokenLogProb, chat_log_probs, text_log_probs
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning
from trireme.base.errors import ServerError


class _Choice:
    """A choice of an answer, as far as it has come."""

    def __init__(self) -> None:
        self.content = ""
        self.reasoning = ""
        self.calls: list[dict[str, str]] = []
        self.finish_reason: str | None = None
        self.log_probs: list[TokenLogProb] = []

    def add(self, delta: Delta) -> None:
        match delta:
            case Content(text):
                self.content += text
            case Reasoning(text):
                self.reasoning += text
            case CallBegun(_, call_id, name):
                self.calls.append({"id": call_id, "name": name, "arguments": ""})
            case Arguments(index, text):
                self.calls[index]["arguments"] += text

    def body(self, index: int, asked: Asked) -> dict[str, object]:
        said: dict[str, object] = {"message": self._message()} if asked.is_chat else {"text": self.content}
        told = None
        if asked.log_probs:
            told = chat_log_probs(self.log_probs) if asked.is_chat else text_log_probs(self.log_probs, offset=0)[0]
        return {"index": index, **said, "logprobs": told, "finish_reason": self.finish_reason}

    def _message(self) -> dict[str, object]:
        content = None if self.calls and not self.content else self.content
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"] or "{}"},
                }
                for call in self.calls
            ]
        return message


class WholeAnswer:
    """The body of an answer, of the pieces that have come."""

    def __init__(self, asked: Asked) -> None:
        self._asked = asked
        self._choices = [_Choice() for _ in range(asked.num_choices)]

    def add(self, piece: Piece) -> None:
        """Add a piece."""
        choice = self._choices[piece.choice]
        for delta in piece.deltas:
            choice.add(delta)
        choice.finish_reason = piece.finish_reason or choice.finish_reason
        choice.log_probs += piece.log_probs

    def body(self, usage: Usage, *, answer_id: str, now_s: float, model: str) -> dict[str, object]:
        """Return the body, once all pieces are there.

        Args:
            answer_id: name of the answer, without the prefix of its kind.
            now_s: Unix time.
            model: name of the model in the answer.

        Raises:
            ServerError: the server did not send what was asked for.
        """
        if any(choice.finish_reason is None for choice in self._choices):
            raise ServerError("the server ended an answer without saying why (finish_reason)")
        return {
            "id": id_of(self._asked, answer_id),
            "object": "chat.completion" if self._asked.is_chat else "text_completion",
            "created": int(now_s),
            "model": model,
            "choices": [choice.body(index, self._asked) for index, choice in enumerate(self._choices)],
            "usage": usage.fields(),
        }


def answer_body(
    asked: Asked,
    received: Sequence[Sequence[GenerateChunk]],
    deltas: AnswerDeltas,
    *,
    answer_id: str,
    now_s: float,
    model: str,
) -> tuple[dict[str, object], Usage]:
    """Return the body of an answer, and the tokens that it took.

    Args:
        received: by request, the chunks of all its sequences.
        deltas: reads them.
        answer_id: name of the answer, without the prefix of its kind.
        now_s: Unix time.
        model: name of the model in the answer.

    Raises:
        ServerError: the server did not send what was asked for.
    """
    whole = WholeAnswer(asked)
    for request, chunks in enumerate(received):
        for chunk in chunks:
            whole.add(deltas.of(request, chunk))
    usage = deltas.usage
    return whole.body(usage, answer_id=answer_id, now_s=now_s, model=model), usage


def id_of(asked: Asked, answer_id: str) -> str:
    """Return the id of an answer, with the prefix of its kind."""
    return f"{'chatcmpl' if asked.is_chat else 'cmpl'}-{answer_id}"


def num_shortened(asked: Asked, received: Sequence[Sequence[GenerateChunk]]) -> int:
    """Return how many answers a limit of the server cut below the length that was asked for."""
    found = 0
    for request, chunks in zip(asked.requests, received, strict=True):
        for index in range(asked.n):
            own = [chunk for chunk in chunks if (chunk.sequence_index or 0) == index]
            is_at_limit = any(chunk.finish_reason == "length" for chunk in own)
            found += is_at_limit and sum(chunk.num_output_tokens or 0 for chunk in own) < request.max_tokens
    return found
