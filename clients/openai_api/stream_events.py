# SPDX-License-Identifier: Apache-2.0
"""The events of a streamed chat or text completion, as server-sent events: the bytes for each piece, and the end."""

import msgspec

from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.answers import id_of
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning

_END = b"data: [DONE]\n\n"
_encode = msgspec.json.encode


class StreamEvents:
    """The events of one answer; what is the same in all of them is encoded once.

    Args:
        answer_id: name of the answer, without the prefix of its kind.
        now_s: Unix time.
        model: name of the model in the events.
    """

    def __init__(self, asked: Asked, *, answer_id: str, now_s: float, model: str) -> None:
        self._is_chat, self._includes_usage = asked.is_chat, asked.includes_usage
        common = {
            "id": id_of(asked, answer_id),
            "object": "chat.completion.chunk" if asked.is_chat else "text_completion",
            "created": int(now_s),
            "model": model,
        }
        self._head = b"data: " + _encode(common)[:-1]
        self._tail = (b',"usage":null' if asked.includes_usage else b"") + b"}\n\n"
        self._has_begun = [False] * asked.num_choices

    def begin(self) -> bytes:
        """Return what comes before the first piece: nothing."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece; none where the piece says nothing."""
        index = piece.choice
        events = b"".join(self._choice(index, self._said(index, delta), b"null") for delta in piece.deltas)
        if piece.finish_reason:  # apart from the last text, which some readers would not look for there
            events += self._choice(index, self._nothing(index), _encode(piece.finish_reason))
        return events

    def end(self, usage: Usage) -> bytes:
        """Return what follows the last piece."""
        told = b""
        if self._includes_usage:
            told = self._head + b',"choices":[],"usage":' + _encode(usage.fields()) + b"}\n\n"
        return told + _END

    def error(self, error: ApiError) -> bytes:
        """Return the event with which a stream breaks off."""
        return b"data: " + _encode(error.body()) + b"\n\n"

    def _said(self, index: int, delta: Delta) -> bytes:
        if not self._is_chat:
            assert isinstance(delta, Content)  # text is read by nobody
            return b'"text":' + _encode(delta.text)
        role = b"" if self._has_begun[index] else b'"role":"assistant",'
        self._has_begun[index] = True
        return b'"delta":{' + role + _field(delta) + b"}"

    def _nothing(self, index: int) -> bytes:
        if not self._is_chat:
            return b'"text":""'
        return b'"delta":{}' if self._has_begun[index] else b'"delta":{"role":"assistant","content":""}'

    def _choice(self, index: int, said: bytes, reason: bytes) -> bytes:
        choice = b',"choices":[{"index":%d,%b,"logprobs":null,"finish_reason":%b}]' % (index, said, reason)
        return self._head + choice + self._tail


def _field(delta: Delta) -> bytes:
    """Return the field of a message that a delta adds to."""
    match delta:
        case Content(text):
            return b'"content":' + _encode(text)
        case Reasoning(text):
            return b'"reasoning_content":' + _encode(text)
        case CallBegun(index, call_id, name):
            call = {"index": index, "id": call_id, "type": "function", "function": {"name": name, "arguments": ""}}
            return b'"tool_calls":' + _encode([call])
        case Arguments(index, text):
            return b'"tool_calls":' + _encode([{"index": index, "function": {"arguments": text}}])
