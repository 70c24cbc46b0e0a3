# SPDX-License-Identifier: Apache-2.0
"""A wish for a key is taken or refused with what is allowed, and no refusal shows a key."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.api_key import new_key
from gateway.access.caller import Role
from gateway.access.key_record import NewKey
from gateway.access.key_wishes import key_named, new_key_of, seconds_of
from trireme.base.errors import RequestError

NOW_S = 1000.6


def wish(name: str = "alice", **options: Any) -> NewKey:
    defaults = {"tenant": "", "role": Role.USER, "models": None, "expires": None, "now_s": NOW_S}
    return new_key_of(name, **{**defaults, **options})


def test_a_wish_is_what_the_options_say() -> None:
    assert wish() == NewKey("alice", "", Role.USER, None, None)
    asked = wish("a.b@c-d_1", tenant="acme/eu", role=Role.ADMIN, models="chat, code", expires="2h")
    assert asked == NewKey("a.b@c-d_1", "acme/eu", Role.ADMIN, frozenset({"chat", "code"}), 1000 + 2 * 3600)


@pytest.mark.parametrize(
    ("text", "seconds"), [("1m", 60), ("12h", 43_200), ("90d", 7_776_000), ("8w", 4_838_400), ("3650d", 315_360_000)]
)
def test_a_time_is_a_number_with_a_unit(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("NAME", {"name": ""}),
    ("NAME", {"name": "1abcdefghijk"}),
    ("NAME", {"name": "a b"}),
    ("NAME", {"name": "a\n"}),
    ("NAME", {"name": "ä"}),
    ("NAME", {"name": "a" * 65}),
    ("--tenant", {"tenant": "a b"}),
    ("--tenant", {"tenant": "a" * 129}),
    ("--models", {"models": ""}),
    ("--models", {"models": "chat,"}),
    ("--models", {"models": "chat code"}),
    ("--models", {"models": ",".join(f"m{n}" for n in range(101))}),
    *[
        ("--expires", {"expires": text})
        for text in ("", "90", "d", "0d", "-1d", "1.5d", "1y", "3651d", "9999999999w", "٣d")
    ],
]  # fmt: skip


@pytest.mark.parametrize(("named", "options"), WRONG, ids=lambda value: str(value)[:30])
def test_what_is_wrong_is_refused_by_its_name(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        wish(**options)
    assert refused.value.message.startswith(f"{named} must be ")
    assert ", got " in refused.value.message


@pytest.mark.parametrize("option", ["name", "tenant", "models", "expires"])
def test_a_key_in_the_wrong_place_is_refused_and_not_shown(option: str) -> None:
    key = new_key()
    with pytest.raises(RequestError) as refused:
        wish(**{option: key.text})
    assert key.secret not in str(refused.value)
    assert "looks like a key" in refused.value.message


@given(st.text(max_size=80))
def test_no_text_is_anything_but_taken_or_refused(text: str) -> None:
    for option in ("name", "tenant", "models", "expires"):
        with contextlib.suppress(RequestError):
            wish(**{option: text})
    with contextlib.suppress(RequestError):
        assert key_named(text) == text


def test_a_key_is_named_by_its_id_or_name_and_never_by_itself() -> None:
    assert key_named("1abcdefghijk") == "1abcdefghijk"
    assert key_named("alice") == "alice"
    key = new_key()
    with pytest.raises(RequestError, match="not the key") as refused:
        key_named(key.text)
    assert key.secret not in str(refused.value)
