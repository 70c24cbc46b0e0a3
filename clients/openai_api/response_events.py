# SPDX-License-Identifier: Apache-2.0
"""The answer of `/v1/responses`: its items, and the events that tell of them as they come."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import msgspec

from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Asked
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning

_TEXT, _THOUGHT = "output_text", "reasoning_text"


class Event(NamedTuple):
    """An event, as JSON."""

    name: str
    data: bytes


class ResponseEvents:
    """The events of one response; whoever wants the answer whole leaves them, and takes `response`.

    Args:
        answer_id: name of the answer, without the prefix of its kind; its items have it, too.
        now_s: Unix time.
        model: name of the model in the answer.
    """

    def __init__(self, asked: Asked, *, answer_id: str, now_s: float, model: str) -> None:
        self._id = answer_id
        self._response: dict[str, Any] = {
            "id": f"resp_{answer_id}",
            "object": "response",
            "created_at": int(now_s),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "metadata": {},
            "model": model,
            "output": [],
            "previous_response_id": None,
            "reasoning": {"effort": None, "summary": None},
            "store": False,
            "truncation": "disabled",
            "usage": None,
            **asked.echo,
        }
        self._output: list[dict[str, Any]] = self._response["output"]
        self._item: dict[str, Any] | None = None  # that is written
        self._text: list[str] = []  # of it, so far
        self._number = 0
        self._finish_reason: str | None = None

    @property
    def response(self) -> dict[str, Any]:
        """Return the response as it is so far."""
        return self._response

    def begin(self) -> list[Event]:
        """Return the events before the first item."""
        return [self._event(f"response.{name}", response=self._response) for name in ("created", "in_progress")]

    def piece(self, piece: Piece) -> list[Event]:
        """Return the events of a piece."""
        self._finish_reason = piece.finish_reason or self._finish_reason
        return [event for delta in piece.deltas for event in self._delta(delta)]

    def end(self, usage: Usage) -> list[Event]:
        """Return the last events; the response is complete then."""
        events = list(self._close_item())
        is_cut = self._finish_reason == "length"
        self._response["status"] = "incomplete" if is_cut else "completed"
        if is_cut:
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._response["usage"] = {
            "input_tokens": usage.prompt_tokens,
            "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
            "output_tokens": usage.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total_tokens,
        }
        return [*events, self._event(f"response.{self._response['status']}", response=self._response)]

    def error(self, error: ApiError) -> list[Event]:
        """Return the events with which a stream breaks off."""
        self._response["status"] = "failed"
        self._response["error"] = {"code": "server_error", "message": error.message}
        told = self._event("error", code=error.code, message=error.message, param=error.param)
        return [told, self._event("response.failed", response=self._response)]

    def _delta(self, delta: Delta) -> Iterator[Event]:
        match delta:
            case Content(text):
                yield from self._open("message", _TEXT)
                yield self._piece("response.output_text.delta", text, content_index=0, logprobs=[])
            case Reasoning(text):
                yield from self._open("reasoning", _THOUGHT)
                yield self._piece("response.reasoning_text.delta", text, content_index=0)
            case CallBegun(_, call_id, name):
                yield from self._close_item()
                item = {"type": "function_call", "call_id": call_id, "name": name, "arguments": ""}
                yield self._begin_item(item, prefix="fc")
            case Arguments(_, text):
                yield self._piece("response.function_call_arguments.delta", text)

    def _open(self, kind: str, part: str) -> Iterator[Event]:
        """Begin an item of text, if the one that is written is another."""
        if self._item is not None and self._item["type"] == kind:
            return
        yield from self._close_item()
        if kind == "message":
            yield self._begin_item({"type": kind, "role": "assistant", "content": []}, prefix="msg")
        else:
            yield self._begin_item({"type": kind, "summary": [], "content": []}, prefix="rs")
        yield self._of_item("response.content_part.added", content_index=0, part=_part(part, ""))

    def _begin_item(self, item: dict[str, Any], *, prefix: str) -> Event:
        self._item = {"id": f"{prefix}_{self._id}_{len(self._output)}", "status": "in_progress", **item}
        self._text = []
        return self._event("response.output_item.added", output_index=len(self._output), item=self._item)

    def _close_item(self) -> Iterator[Event]:
        item = self._item
        if item is None:
            return
        text = "".join(self._text)
        item["status"] = "completed"
        if item["type"] == "function_call":
            item["arguments"] = text = text or "{}"
            yield self._of_item("response.function_call_arguments.done", arguments=text, name=item["name"])
        else:
            part = _part(_TEXT if item["type"] == "message" else _THOUGHT, text)
            item["content"] = [part]
            more: dict[str, object] = {"logprobs": []} if item["type"] == "message" else {}
            yield self._of_item(f"response.{part['type']}.done", content_index=0, text=text, **more)
            yield self._of_item("response.content_part.done", content_index=0, part=part)
        yield self._event("response.output_item.done", output_index=len(self._output), item=item)
        self._output.append(item)
        self._item = None

    def _piece(self, name: str, text: str, **fields: object) -> Event:
        self._text.append(text)
        return self._of_item(name, delta=text, **fields)

    def _of_item(self, name: str, /, **fields: object) -> Event:
        assert self._item is not None
        return self._event(name, item_id=self._item["id"], output_index=len(self._output), **fields)

    def _event(self, name: str, /, **fields: object) -> Event:
        data = msgspec.json.encode({"type": name, "sequence_number": self._number, **fields})
        self._number += 1
        return Event(name, data)


def _part(kind: str, text: str) -> dict[str, Any]:
    more: dict[str, object] = {"annotations": [], "logprobs": []} if kind == _TEXT else {}
    return {"type": kind, "text": text, **more}


class ResponseStream:
    """The events of a response as server-sent events. Args: those of `ResponseEvents`."""

    def __init__(self, asked: Asked, *, answer_id: str, now_s: float, model: str) -> None:
        self._events = ResponseEvents(asked, answer_id=answer_id, now_s=now_s, model=model)

    def begin(self) -> bytes:
        """Return the events before the first item."""
        return _as_stream(self._events.begin())

    def piece(self, piece: Piece) -> bytes:
        """Return the events of a piece."""
        return _as_stream(self._events.piece(piece))

    def end(self, usage: Usage) -> bytes:
        """Return the last events."""
        return _as_stream(self._events.end(usage))

    def error(self, error: ApiError) -> bytes:
        """Return the events with which a stream breaks off."""
        return _as_stream(self._events.error(error))


def _as_stream(events: Iterable[Event]) -> bytes:
    return b"".join(b"event: %b\ndata: %b\n\n" % (event.name.encode(), event.data) for event in events)
