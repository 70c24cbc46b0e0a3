# SPDX-License-Identifier: Apache-2.0
"""The batches of texts of different length: each text once, and no batch beyond its bounds."""

from hypothesis import given
from hypothesis import strategies as st

from serving.engines.embedding.text_batches import text_batches

LENGTHS = st.lists(st.integers(1, 600), max_size=80)


@given(LENGTHS, st.integers(1, 20), st.integers(1, 2000))
def test_each_text_is_in_one_batch_and_each_batch_within_its_bounds(
    lengths: list[int], max_texts: int, max_tokens: int
) -> None:
    batches = list(text_batches(lengths, max_texts=max_texts, max_tokens=max_tokens))
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= max_texts
        assert len(batch) == 1 or len(batch) * max(lengths[index] for index in batch) <= max_tokens


def test_a_long_text_is_not_padding_for_many_short_ones() -> None:
    lengths = [8, 512, 9, 8, 7]
    assert list(text_batches(lengths, max_texts=64, max_tokens=1024)) == [[4, 0, 3, 2], [1]]


def test_no_texts_are_no_batches() -> None:
    assert list(text_batches([], max_texts=4, max_tokens=64)) == []
