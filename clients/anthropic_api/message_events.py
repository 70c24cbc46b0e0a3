# SPDX-License-Identifier: Apache-2.0
"""The answer of `/v1/messages`: its blocks, and the events that tell of them as they come."""

from collections.abc import Iterator
from typing import Any

import msgspec

from clients.anthropic_api.message_error import message_error
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning
from trireme.base.errors import ServerError

_STOP_REASONS = {
    "stop": "end_turn",
    "stop_string": "stop_sequence",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "content_filter": "refusal",
}


class MessageEvents:
    """The events of one answer; whoever wants the answer whole leaves them, and takes `message`.

    Args:
        answer_id: name of the answer, without the prefix of its kind.
        model: name of the model in the answer.
        usage: what is known of it before the first piece.
    """

    def __init__(self, asked: Asked, *, answer_id: str, model: str, usage: Usage) -> None:
        words = asked.requests[0].stop_words or ()
        self._stop_sequence = words[0] if len(words) == 1 else ""  # of several, a piece says which one it was
        self._finish_reason: str | None = None
        self._text: list[str] = []  # of the block that is written
        self.message: dict[str, Any] = {
            "id": f"msg_{answer_id}",
            "type": "message",
            "role": "assistant",
            "model": model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(usage),
        }
        self._blocks: list[dict[str, Any]] = self.message["content"]
        self._is_open = False  # the last block

    def begin(self) -> bytes:
        """Return the events before the first block."""
        return _event("message_start", message=self.message) + _event("ping")

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece."""
        self._finish_reason = piece.finish_reason or self._finish_reason
        self._stop_sequence = piece.stop_string or self._stop_sequence
        return b"".join(event for delta in piece.deltas for event in self._delta(delta))

    def end(self, usage: Usage) -> bytes:
        """Return the last events; the message is complete then.

        Raises:
            ServerError: the server did not send what was asked for.
        """
        if self._finish_reason is None:
            raise ServerError("the server ended an answer without saying why (finish_reason)")
        events = b"".join(self._close())
        reason = _STOP_REASONS.get(self._finish_reason, self._finish_reason)
        is_told = reason == "stop_sequence" and self._stop_sequence
        ended = {"stop_reason": reason, "stop_sequence": self._stop_sequence if is_told else None}
        self.message |= {**ended, "usage": _usage(usage)}
        return events + _event("message_delta", delta=ended, usage=_usage(usage)) + _event("message_stop")

    def error(self, error: ApiError) -> bytes:
        """Return the event with which a stream breaks off."""
        return b"event: error\ndata: %b\n\n" % msgspec.json.encode(message_error(error))

    def _delta(self, delta: Delta) -> Iterator[bytes]:
        match delta:
            case Content(text):
                yield from self._open({"type": "text", "text": ""})
                yield self._piece("text_delta", text=text)
            case Reasoning(text):
                yield from self._open({"type": "thinking", "thinking": "", "signature": ""})
                yield self._piece("thinking_delta", thinking=text)
            case CallBegun(_, call_id, name):
                yield from self._close()
                yield from self._open({"type": "tool_use", "id": call_id, "name": name, "input": {}})
            case Arguments(_, text):
                yield self._piece("input_json_delta", partial_json=text)

    def _open(self, block: dict[str, Any]) -> Iterator[bytes]:
        """Begin a block, if the one that is written is another."""
        if self._is_open and self._blocks[-1]["type"] == block["type"]:
            return
        yield from self._close()
        self._blocks.append(block)
        self._is_open, self._text = True, []
        yield _event("content_block_start", index=len(self._blocks) - 1, content_block=block)

    def _close(self) -> Iterator[bytes]:
        if not self._is_open:
            return
        block, text = self._blocks[-1], "".join(self._text)
        if block["type"] == "tool_use":
            block["input"] = _input(text)
        else:
            block[block["type"]] = text
        self._is_open = False
        yield _event("content_block_stop", index=len(self._blocks) - 1)

    def _piece(self, kind: str, **said: str) -> bytes:
        self._text += said.values()
        return _event("content_block_delta", index=len(self._blocks) - 1, delta={"type": kind, **said})


def _input(text: str) -> dict[str, Any]:
    """Return the input of a call; one that was cut off has none, and the reason why the answer ended says so."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return {}


def _usage(usage: Usage) -> dict[str, int]:
    """Return the tokens; those that the KV cache had are apart from the other ones of the prompt."""
    cached = usage.cached_tokens or 0
    return {
        "input_tokens": usage.prompt_tokens - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion_tokens,
    }


def _event(name: str, /, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode({"type": name, **fields}))
