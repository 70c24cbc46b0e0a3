# SPDX-License-Identifier: Apache-2.0
"""The events of a streamed chat or text completion, as server-sent events: the bytes for each piece, and the end."""

import msgspec

from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.answers import id_of
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from clients.openai_api.log_probs import TokenLogProb, chat_log_probs, text_log_probs
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
        # Of each choice: tokens whose text has not come, and the place of the next one.
        self._log_probs: list[list[TokenLogProb]] | None = None
        if asked.log_probs:
            self._log_probs = [[] for _ in range(asked.num_choices)]
        self._offsets = [0] * asked.num_choices

    def begin(self) -> bytes:
        """Return what comes before the first piece: nothing."""
        return b""

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece; none where the piece says nothing."""
        index = piece.choice
        if self._log_probs is not None:
            self._log_probs[index] += piece.log_probs
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
        told = b"null" if self._log_probs is None else self._told(index)
        choice = b',"choices":[{"index":%d,%b,"logprobs":%b,"finish_reason":%b}]' % (index, said, told, reason)
        return self._head + choice + self._tail

    def _told(self, index: int) -> bytes:
        """Return the log probabilities of the tokens of a choice that were not told, each once."""
        assert self._log_probs is not None, "they were asked for"
        tokens, self._log_probs[index] = self._log_probs[index], []
        if not tokens:
            return b"null"
        if self._is_chat:
            return _encode(chat_log_probs(tokens))
        told, self._offsets[index] = text_log_probs(tokens, offset=self._offsets[index])
        return _encode(told)


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
