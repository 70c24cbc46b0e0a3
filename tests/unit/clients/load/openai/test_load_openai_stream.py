# SPDX-License-Identifier: Apache-2.0
"""The events of OpenAI-compatible servers as chunks: counts, held back chunks, cut lines, errors."""

import datetime
import email.utils
import json
from typing import Any

import msgspec
import pytest
from completions_server import DONE, event

from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.load.openai.openai_errors import http_error
from clients.load.openai.openai_stream import CompletionStream, completion_body, completions_url
from trireme.base.errors import AccessDenied, RequestError, RequestTimeout, ServerError, ServingError, Unavailable

CUT_CHARACTER = (b'data: {"choices": [{"text": "\xc3', b'\xbc"}]}\n')
ASKED = GenerateRequest(text_input="a b", max_tokens=8)


def chunks(*parts: bytes, end: bool = True) -> list[GenerateChunk]:
    """Return the chunks of parts that come at 100, 200, ..."""
    stream = CompletionStream()
    found = [chunk for number, part in enumerate(parts, start=1) for chunk in stream.feed(part, number * 100)]
    assert stream.is_done == end
    return found + stream.release()


def told(found: list[GenerateChunk]) -> list[tuple[str, int | None, int]]:
    return [(chunk.text, chunk.num_output_tokens, chunk.received_ns) for chunk in found]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([event("a"), event(" b"), event(None, usage=(3, 2)), DONE], [("a", 1, 100), (" b", 1, 200)]),
        # Five tokens in two events: nobody knows which of them held more, so the last one has what is missing.
        ([event("a"), event(" b"), event(None, usage=(3, 5)), DONE], [("a", 1, 100), (" b", 4, 200)]),
        # Counted at each event, as vLLM does where it is asked to.
        (
            [event("a", usage=(3, 1)), event(" bc", usage=(3, 3)), event("", usage=(3, 4)), DONE],
            [("a", 1, 100), (" bc", 2, 200), ("", 1, 300)],
        ),
        # A last event without text, as llama.cpp's: what is missing belongs to the text before.
        (
            [event("a"), event(" b"), event("", finish_reason="stop"), event(None, usage=(3, 3)), DONE],
            [("a", 1, 100), (" b", 2, 200), ("", 0, 300)],
        ),
        # Tokens whose text was held back: they are in no event of their own.
        ([event("a"), event(""), event("b"), DONE], [("a", 1, 100), ("", 0, 200), ("b", 1, 300)]),
        ([event("a"), event("b"), event(None, usage=(3, 1)), DONE], [("a", 1, 100), ("b", 0, 200)]),
        ([event("a", finish_reason="stop"), DONE], [("a", 1, 100)]),
        ([event("", finish_reason="stop"), event(None, usage=(3, 0)), DONE], [("", 0, 100)]),
        ([event(None, usage=(3, 2)), DONE], [("", 2, 100)]),
        ([DONE], []),
        ([event("a") + event("b") + DONE], [("a", 1, 100), ("b", 1, 100)]),
        # Cut within a line, and within a character: it counts when it is whole.
        ([event("ab")[:9], event("ab")[9:], DONE], [("ab", 1, 200)]),
        ([*CUT_CHARACTER, b"data: [DO", b"NE]\n"], [("ü", 1, 200)]),
        ([event("a").replace(b"\n", b"\r\n"), DONE.replace(b"\n", b"\r\n")], [("a", 1, 100)]),
        ([b": a sign of life\n\n", b"event: done\n", b"id: 7\nretry: 10\n", b"data:[DONE]\n\n"], []),
    ],
    ids=[
        "one each", "counted at the end", "counted each", "an end without text", "held back", "fewer than events",
        "one token", "empty", "no text at all", "nothing", "two at once", "a cut line", "a cut character", "CRLF",
        "what is no data",
    ],
)  # fmt: skip
def test_events_become_chunks(parts: list[bytes], expected: list[tuple[str, int, int]]) -> None:
    assert told(chunks(*parts)) == expected


def test_what_is_asked_and_why_it_ended_are_told() -> None:
    found = chunks(event("a"), event(" b", finish_reason="length"), event(None, usage=(7, 2)), DONE)
    assert [chunk.finish_reason for chunk in found] == [None, "length"]
    assert [chunk.num_input_tokens for chunk in found] == [None, 7]


def test_a_chunk_is_held_until_the_next_event_and_keeps_its_time() -> None:
    stream = CompletionStream()
    assert list(stream.feed(event("a"), 100)) == []
    assert told(list(stream.feed(event("b"), 200))) == [("a", 1, 100)]
    assert told(list(stream.feed(DONE, 300))) == [("b", 1, 200)]


def test_a_stream_without_its_end_was_cut_and_tells_what_came() -> None:
    stream = CompletionStream()
    assert list(stream.feed(event("a"), 100)) == []
    assert told(stream.release()) == [("a", 1, 100)]
    with pytest.raises(Unavailable, match="before"):
        stream.check_end()


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (b'data: {"error": {"message": "the engine died", "code": 500}}\n', ServerError, "HTTP 500: the engine died"),
        (b'data: {"error": {"message": "too long", "code": 400}}\n', RequestError, "HTTP 400: too long"),
        (b'data: {"error": {"message": "full", "code": 503}}\n', Unavailable, "HTTP 503: full"),
        (b'data: {"object": "error", "message": "no", "code": 400}\n', RequestError, "HTTP 400: no"),
        (b'data: {"error": {"message": "x", "code": "server_error"}}\n', ServerError, "HTTP 500: x"),
        (b'error: {"message": "x", "code": 500}\n', ServerError, "HTTP 500: x"),
        (b"event: error\ndata: it broke\n", ServerError, "HTTP 500: it broke"),
        (b"event: error\n: it broke\n\n", ServerError, "HTTP 500: it broke"),
        (b"data: {no json\n", ServerError, "none of /completions: {no json"),
        (b'data: {"choices": 7}\n', ServerError, "none of /completions"),
    ],
)
def test_an_error_in_the_stream_is_raised_with_the_servers_words(
    error: bytes, kind: type[ServingError], said: str
) -> None:
    stream = CompletionStream()
    assert list(stream.feed(event("a"), 100)) == []
    with pytest.raises(kind) as caught:
        list(stream.feed(error, 200))
    assert said in caught.value.message
    assert told(stream.release()) == [("a", 1, 100)]


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (400, b'{"error": {"message": "max_tokens is above 8"}}', RequestError, "HTTP 400: max_tokens is above 8"),
        (404, b'{"detail": "Not Found"}', RequestError, "HTTP 404: Not Found"),
        (422, b'{"detail": [{"loc": ["prompt"]}]}', RequestError, '"loc": ["prompt"]'),
        (401, b'{"error": "who are you"}', AccessDenied, "HTTP 401: who are you"),
        (500, b"<html>\n oh </html>", ServerError, "HTTP 500: <html> oh </html>"),
        (502, b"", Unavailable, "HTTP 502: the server gave no reason"),
        (429, b'{"message": "slowly"}', Unavailable, "HTTP 429: slowly"),
        (504, b"late", RequestTimeout, "HTTP 504: late"),
        (302, b"", ServerError, "HTTP 302"),
    ],
)
def test_an_answer_that_is_none_is_an_error_with_the_servers_words(
    status: int, body: bytes, kind: type[ServingError], said: str
) -> None:
    error = http_error(status, body)
    assert type(error) is kind
    assert said in error.message


def test_when_to_come_back_is_seconds_or_a_date() -> None:
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=5)
    assert http_error(429, b"", "1.5").facts["retry_after_ms"] == 1500
    at_date = http_error(503, b"", email.utils.format_datetime(soon, usegmt=True)).facts["retry_after_ms"]
    assert isinstance(at_date, int)
    assert 3000 < at_date <= 5000
    for nothing in ("", "nan", "inf", "soon", "-1"):
        assert "retry_after_ms" not in http_error(503, b"", nothing).facts, nothing


def test_a_key_that_a_server_repeats_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    assert "sk-secret" not in http_error(401, b'{"error": {"message": "wrong key sk-secret"}}').message


def test_a_body_has_what_was_asked_and_nothing_else() -> None:
    plain = json.loads(completion_body(ASKED, model="mine", counts_each=False))
    assert plain == {
        "model": "mine", "prompt": "a b", "max_tokens": 8, "temperature": 0.0, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    exact = msgspec.structs.replace(ASKED, min_tokens=8, end_id=-1, temperature=0.5, top_p=1.0)
    more = json.loads(completion_body(exact, model="mine", counts_each=True))
    assert more == plain | {
        "min_tokens": 8, "ignore_eos": True, "temperature": 0.5, "top_p": 1.0,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }  # fmt: skip


@pytest.mark.parametrize("fields", [{"priority": 1}, {"tenant": "a"}, {"end_id": 2}, {"beam_width": 2}])
def test_what_has_no_name_there_is_refused_by_its_own(fields: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        completion_body(msgspec.structs.replace(ASKED, **fields), model="m", counts_each=False)
    assert caught.value.facts["field"] == next(iter(fields))


def test_an_url_is_that_of_a_server_and_holds_no_key() -> None:
    assert completions_url("http://here:80/v1/") == "http://here:80/v1/completions"
    for wrong in ("grpc://here:1", "http:///v1", "http://here/v1?x=1", "http://user:key@here/v1"):
        with pytest.raises(RequestError) as caught:
            completions_url(wrong)
        assert caught.value.facts["field"] == "url"
        assert "key@" not in str(caught.value)
