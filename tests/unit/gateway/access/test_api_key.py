# SPDX-License-Identifier: Apache-2.0
"""API keys are read as they were made, and nothing that is printed of one holds its secret."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.api_key import NO_HASH, ApiKey, bearer_key, holds_a_key, new_key, read_key


def test_a_key_has_a_public_id_and_256_random_bits() -> None:
    keys = [new_key() for _ in range(200)]
    assert all(re.fullmatch(r"tri-[0-9][0-9a-z]{11}-[\w-]{43}", key.text, re.ASCII) for key in keys)
    assert len({key.id for key in keys}) == len({key.secret for key in keys}) == 200


def test_a_key_is_read_from_its_text_and_from_a_header() -> None:
    key = new_key()
    assert read_key(key.text) == key
    for header in (f"Bearer {key.text}", f"bearer  {key.text} "):
        assert bearer_key(header) == key


@given(st.text())
def test_no_other_text_is_a_key(text: str) -> None:
    assert read_key(text) is None
    assert bearer_key(f"Bearer {text}") is None
    assert bearer_key(text) is None


@given(st.integers(0, 59), st.characters(codec="ascii"))
def test_a_key_with_another_character_is_another_key_or_none(place: int, char: str) -> None:
    key = ApiKey("1abcdefghijk", "A_b-" * 10 + "xyz")
    changed = key.text[:place] + char + key.text[place + 1 :]
    found = read_key(changed)
    assert changed == key.text or found != key
    assert found is None or found.text == changed


def test_only_the_secret_itself_has_its_hash() -> None:
    key = new_key()
    assert key.is_of(key.secret_sha256)
    assert not key.is_of(NO_HASH)
    assert not key.is_of(new_key().secret_sha256)
    assert not key._replace(secret=new_key().secret).is_of(key.secret_sha256)


@pytest.mark.parametrize("show", [str, repr, "{}".format, "%s".__mod__, lambda key: f"{[key]}"])
def test_what_is_printed_of_a_key_is_its_id(show: object) -> None:
    key = new_key()
    assert callable(show)
    assert key.id in show((key,) if show == "%s".__mod__ else key)
    assert key.secret not in show((key,) if show == "%s".__mod__ else key)


def test_a_text_with_a_key_in_it_is_known() -> None:
    key = new_key()
    assert all(map(holds_a_key, (key.text, f"my {key.text}", key.text[:20])))
    assert not any(map(holds_a_key, ("alice", "tri-agency-production", key.id)))
