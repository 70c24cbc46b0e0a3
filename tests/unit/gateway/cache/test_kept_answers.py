# SPDX-License-Identifier: Apache-2.0
"""Answers as they are kept: joined, as bytes and back, under a name that nothing else has."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.infer_messages import GenerateRequest
from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Delta, Reasoning
from gateway.cache.answer_store import AnswersInMemory
from gateway.cache.kept_answer import KeptAnswer, is_repeatable, joined, name_of, packed, unpacked

REQUEST = GenerateRequest(messages=[{"role": "user", "content": "Hi"}], max_tokens=9)

texts = st.text(min_size=1, max_size=5)
deltas: st.SearchStrategy[Delta] = st.one_of(
    st.builds(Content, texts),
    st.builds(Reasoning, texts),
    st.builds(CallBegun, st.integers(0, 3), texts, texts),
    st.builds(Arguments, st.integers(0, 3), texts),
)
pieces = st.lists(st.builds(Piece, st.integers(0, 2), st.lists(deltas, max_size=4), st.none()), max_size=8)


def asked(**fields: Any) -> Asked:
    request = msgspec.structs.replace(REQUEST, **fields)
    return Asked(endpoint=Endpoint.CHAT, requests=(request,))


def by_kind(found: list[Piece], choice: int) -> list[tuple[object, ...]]:
    """Return what a caller puts together: the texts of each kind, one after the other as they change."""
    said: list[tuple[object, ...]] = []
    for delta in (delta for piece in found if piece.choice == choice for delta in piece.deltas):
        *what, text = msgspec.structs.astuple(delta)
        key = (type(delta), *what)
        if not isinstance(delta, CallBegun) and said and said[-1][:-1] == key:
            said[-1] = (*key, f"{said[-1][-1]}{text}")
        else:
            said.append((*key, text))
    return said


@given(pieces)
def test_a_joined_answer_says_the_same_also_as_bytes(made: list[Piece]) -> None:
    made = [*made, *(Piece(choice, [], "stop") for choice in range(3))]
    answer = KeptAnswer(joined(made), Usage(4, 5, 2), "stop", 7)
    back = unpacked(packed(answer))
    assert back == answer
    assert len(back.pieces) == 3
    for choice in range(3):
        assert by_kind(back.pieces, choice) == by_kind(made, choice)


@pytest.mark.parametrize("data", [b"", b"\xc1", msgspec.msgpack.encode(([], [0, 0, None], "")), b"\x94" * 9])
def test_bytes_that_hold_no_answer_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  msgspec's own text
        unpacked(data)


def test_a_kind_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="kind"):
        unpacked(msgspec.msgpack.encode(([(0, [(9, ["a"])], "stop", "")], (0, 0, None), "", None)))


def name(**fields: Any) -> str:
    return name_of(asked(**fields), model="demo", owner="tenant a")


def test_what_changes_the_answer_changes_the_name_and_nothing_else_does() -> None:
    same = {name(**{field: value}) for field, value in (
        ("stream", True), ("tenant", "a"), ("priority", 1), ("deadline_ms", 5), ("return_release", True),
    )}  # fmt: skip
    assert same == {name()}
    others = [
        name_of(asked(), model="other", owner="tenant a"),
        name_of(asked(), model="demo", owner="tenant b"),
        name_of(asked(), model="demo", owner="key a"),
        name_of(msgspec.structs.replace(asked(), n=2), model="demo", owner="tenant a"),
        name_of(msgspec.structs.replace(asked(), endpoint=Endpoint.RESPONSES), model="demo", owner="tenant a"),
        name(messages=[{"role": "user", "content": "Ho"}]),
        name(text_input="Hi", messages=None),
    ]
    assert len({*others, name()}) == len(others) + 1


def test_every_field_of_a_request_is_in_the_name_or_known_to_change_nothing() -> None:
    values: dict[object, object] = {str: "x", int: 3, float: 0.5, bool: True}
    unnamed = set()
    for field in msgspec.structs.fields(GenerateRequest):
        [kind] = [part for part in getattr(field.type, "__args__", (field.type,)) if part is not type(None)]
        value = values.get(kind, ("x",))
        if name(**{field.name: value}) == name():
            unnamed.add(field.name)
    assert unnamed == {
        "stream", "return_num_input_tokens", "return_num_output_tokens", "return_num_cached_tokens",
        "return_finish_reason", "return_release", "return_token_ids", "priority", "tenant", "deadline_ms",
        "queue_timeout_ms",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"temperature": 0.0, "top_p": 1.0}, True),
        ({"temperature": 1.0, "top_p": 1.0}, False),
        ({"temperature": 1.0, "top_p": 1.0, "seed": 0}, True),
    ],
    ids=["greedy", "temperature 0", "sampled", "seed"],
)
def test_a_request_is_repeatable_where_it_has_one_answer(fields: dict[str, Any], *, expected: bool) -> None:
    assert is_repeatable(msgspec.structs.replace(REQUEST, **fields)) is expected


def test_answers_in_memory_are_bounded_and_forgotten() -> None:
    now_s = 0.0

    async def work() -> None:
        nonlocal now_s
        store = AnswersInMemory(ttl_s=10.0, max_bytes=3 * 1204, now_s=lambda: now_s)
        for number in range(3):
            await store.put(f"ab{number:02}", b"x" * 1000)
        assert await store.get("ab00") == b"x" * 1000  # so it is not the oldest any more
        await store.put("ab03", b"y" * 1000)
        assert [await store.get(f"ab{number:02}") is not None for number in range(4)] == [True, False, True, True]
        now_s = 9.9
        await store.put("ab00", b"z")
        now_s = 10.0
        assert [await store.get(name) for name in ("ab00", "ab02", "ab03")] == [b"z", None, None]
        assert store._num_bytes == 204 + 1

    asyncio.run(work())
