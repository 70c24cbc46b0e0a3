# SPDX-License-Identifier: Apache-2.0
"""The choice of a server: beginnings of prompts draw, unless one server has far more to do than another."""

from typing import Any

import pytest

from clients.infer_messages import GenerateRequest
from gateway.servers.choice import choose
from gateway.servers.prefixes import Prefixes, numbers_of
from gateway.servers.server import Server

NO_CLIENT: Any = None


@pytest.fixture
def servers() -> list[Server]:
    return [Server(name, NO_CLIENT, ["ensemble"]) for name in "abc"]


def text(request: str) -> list[int]:
    return numbers_of(GenerateRequest(text_input=request, max_tokens=1))


def chat(*contents: str, session: str = "") -> list[int]:
    messages: list[dict[str, object]] = [{"role": "user", "content": content} for content in contents]
    return numbers_of(GenerateRequest(messages=messages, max_tokens=1), session=session)


def test_prompts_have_their_first_numbers_in_common_as_far_as_their_texts_are_the_same() -> None:
    first, second = text("a" * 1024 + "b" * 300), text("a" * 1024 + "c" * 300)
    assert (len(first), len(second)) == (5, 5)
    assert [one == other for one, other in zip(first, second, strict=True)] == [True] * 4 + [False]
    assert text("a" * 1023) == first[:3]
    assert len(set(text("a" * 2560))) == 10  # the same text later is another piece


def test_the_next_turn_of_a_conversation_begins_with_the_whole_last_one() -> None:
    turns = ["x" * 400, "short", "z" * 4000]
    before, after = chat(*turns[:2]), chat(*turns)
    assert len(before) == 3
    assert after[: len(before)] == before


def test_tenants_have_no_block_in_common() -> None:
    request = GenerateRequest(text_input="a" * 1000, max_tokens=1)
    assert set(numbers_of(request, tenant="a")).isdisjoint(numbers_of(request, tenant="b"))


def test_the_server_with_the_fewest_requests_is_taken_for_what_is_new(servers: list[Server]) -> None:
    servers[0].num_running, servers[1].num_running = 2, 1
    assert choose(servers, text("a" * 1000)).url == "c"
    assert choose(servers, []).url == "c"


def test_a_conversation_stays_where_it_is_until_there_is_too_much_to_do(servers: list[Server]) -> None:
    servers[1].prefixes.add(chat("Hi"))
    longer = chat("Hi", "y" * 7000, "And?")  # of which it had a small part
    for running in range(5):
        servers[1].num_running = running
        assert choose(servers, longer).url == "b"
    servers[1].num_running = 5
    assert choose(servers, longer).url != "b"
    for server in servers:
        server.num_running += 4
    assert choose(servers, longer).url == "b"


def test_a_short_beginning_that_all_have_draws_nobody(servers: list[Server]) -> None:
    system = "s" * 600
    servers[0].prefixes.add(text(system + "a" * 2000))
    servers[0].turn = 1
    assert choose(servers, text(system + "b" * 2000)).url != "a"


def test_a_text_goes_where_most_of_it_is_or_where_what_it_goes_on_with_is(servers: list[Server]) -> None:
    servers[2].prefixes.add(text("a" * 2000 + "c" * 2000))
    assert choose(servers, text("a" * 2000 + "b" * 1500)).url == "c"
    assert choose(servers, text("a" * 2000 + "b" * 2600)).url != "c"
    assert choose(servers, text("a" * 2000 + "c" * 2000 + "b" * 9000)).url == "c"


def test_equals_take_turns(servers: list[Server]) -> None:
    taken = []
    for _ in range(6):
        server = choose(servers, [])
        server.begin()
        server.num_running = 0
        taken.append(server.url)
    assert taken == ["a", "b", "c"] * 2


def test_a_server_that_was_full_a_moment_ago_is_asked_last(servers: list[Server]) -> None:
    servers[0].prefixes.add(chat("Hi"))
    servers[0].note_full(60.0)
    assert choose(servers, chat("Hi", "Hello", "And?")).url != "a"
    for server in servers[1:]:
        server.note_full(60.0)
    assert choose(servers, chat("Hi", "Hello", "And?")).url == "a"


def test_one_missing_answer_changes_nothing_and_several_empty_the_cache(servers: list[Server]) -> None:
    server = servers[0]
    assert server.note_ready(server.models)
    server.prefixes.add(chat("Hi"))
    changes = [server.note_ready(frozenset()) for _ in range(5)]
    assert changes == [False, True, False, False, False]
    assert not server.takes("ensemble")
    assert server.prefixes.num_had(chat("Hi")) == 0
    assert server.note_ready(server.models)
    assert server.takes("ensemble")


def test_a_session_is_followed_by_its_name_however_short_its_prompts_are(servers: list[Server]) -> None:
    servers[2].prefixes.add(chat("Hi", session="mine"))
    assert choose(servers, chat("Hi", session="mine"), is_session=True).url == "c"
    assert choose(servers, chat("Hi", session="another"), is_session=True).url != "c"


def test_what_was_not_used_for_long_is_forgotten_from_its_end() -> None:
    prefixes = Prefixes(max_kept=6)
    old, new = text("a" * 1024), text("b" * 1024)
    prefixes.add(old)
    prefixes.add(new)
    assert (prefixes.num_had(old), prefixes.num_had(new)) == (2, 4)
    prefixes.clear()
    assert prefixes.num_had(new) == 0
