# SPDX-License-Identifier: Apache-2.0
"""The events of other servers of OpenAI's API, however they are cut and whatever they leave out."""

import json
from typing import Any

import pytest

from clients.infer_messages import GenerateRequest
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Reasoning
from gateway.fallback.managed_events import ManagedEvents
from trireme.base.errors import Unavailable

REQUEST = GenerateRequest(messages=[{"role": "user", "content": "Hi"}], max_tokens=9)


def events(*, n: int = 1, endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> ManagedEvents:
    return ManagedEvents(Asked(endpoint=endpoint, requests=(REQUEST,), n=n, **fields), name="elsewhere")


def lines(*bodies: object) -> bytes:
    said = [body if isinstance(body, str) else json.dumps(body) for body in bodies]
    return "".join(f"data: {text}\r\n\r\n" for text in said).encode()


def delta(finish_reason: str | None = None, index: int = 0, **fields: object) -> dict[str, object]:
    return {"choices": [{"index": index, "delta": fields, "finish_reason": finish_reason}]}


CALL = {"index": 0, "id": "call_9", "type": "function", "function": {"name": "weather", "arguments": ""}}
STREAM = lines(
    delta(role="assistant", content=""),
    delta(reasoning_content="hm"),
    delta(content="Grüße"),
    delta(tool_calls=[CALL]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a"'}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": ":1}"}}]),
    delta("tool_calls"),
    {
        "choices": [],
        "usage": {"prompt_tokens": 5, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 4}},
    },
    "[DONE]",
)
EXPECTED = [
    Piece(0, [Reasoning("hm")], None),
    Piece(0, [Content("Grüße")], None),
    Piece(0, [CallBegun(0, "call_9", "weather")], None),
    Piece(0, [Arguments(0, '{"a"')], None),
    Piece(0, [Arguments(0, ":1}")], None),
    Piece(0, [], "tool_calls"),
]


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_pieces_do_not_depend_on_how_the_bytes_come(size: int) -> None:
    read = events()
    found = [piece for begin in range(0, len(STREAM), size) for piece in read.feed(STREAM[begin : begin + size])]
    assert found == EXPECTED
    assert (read.is_done, read.usage, read.finish_reason) == (True, Usage(5, 6, 4), "tool_calls")


def test_without_a_count_tokens_are_guessed_by_characters() -> None:
    read = events()
    assert read.usage == Usage()
    list(read.feed(lines(delta(content="x" * 41), delta("stop"), "[DONE]")))
    assert read.usage == Usage(REQUEST.num_prompt_chars // 4, 11)


def test_texts_of_completions_begin_with_their_prompts_where_these_are_echoed() -> None:
    read = events(endpoint=Endpoint.COMPLETIONS, n=2, prefixes=("Hi",))
    data = lines(*({"choices": [{"index": index, "text": "!", "finish_reason": "stop"}]} for index in (1, 0)))
    assert list(read.feed(data)) == [
        Piece(1, [Content("Hi"), Content("!")], "stop"),
        Piece(0, [Content("Hi"), Content("!")], "stop"),
    ]


@pytest.mark.parametrize(
    "said",
    [
        lines({"error": {"message": "secret of theirs"}}),
        lines("no JSON"),
        lines(delta(content="x", index=1)),
        lines(delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
        b"x" * ((1 << 24) + 1),
    ],
    ids=["error", "no JSON", "choice", "call", "endless"],
)
def test_what_cannot_be_read_is_a_failure_that_tells_nothing_of_theirs(said: bytes) -> None:
    with pytest.raises(Unavailable, match="elsewhere") as caught:
        list(events().feed(said))
    assert "secret" not in str(caught.value)


def called(index: int, call_id: str | None = None, arguments: str = "") -> dict[str, object]:
    function = {"arguments": arguments, **({"name": "weather"} if call_id else {})}
    return delta(tool_calls=[{"index": index, **({"id": call_id} if call_id else {}), "function": function}])


@pytest.mark.parametrize("indexes", [(0, 1), (1, 2), (0, 0)], ids=["from 0", "from 1", "all alike"])
def test_calls_are_numbered_as_they_come(indexes: tuple[int, int]) -> None:
    first, second = indexes
    data = lines(called(first, "a"), called(first, None, "{}"), called(second, "b", "[1"), called(second, None, "]"))
    assert [piece.deltas for piece in events().feed(data)] == [
        [CallBegun(0, "a", "weather")],
        [Arguments(0, "{}")],
        [CallBegun(1, "b", "weather"), Arguments(1, "[1")],
        [Arguments(1, "]")],
    ]


def test_arguments_of_a_call_that_is_over_are_refused() -> None:
    with pytest.raises(Unavailable, match="after the next one"):
        list(events().feed(lines(called(0, "a"), called(1, "b"), called(0, None, "{}"))))


def test_an_answer_is_whole_where_every_choice_has_its_end() -> None:
    read = events(n=2)
    list(read.feed(lines(delta("stop"), "[DONE]")))
    with pytest.raises(Unavailable, match="1 of 2"):
        read.check_end()
    list(read.feed(lines(delta("stop", index=1))))
    read.check_end()


def test_comments_and_other_fields_say_nothing() -> None:
    assert list(events().feed(b": PING\n\nevent: message\nid: 7\nretry: 5\ndata:\n\n")) == []
