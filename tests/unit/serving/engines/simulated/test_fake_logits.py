# SPDX-License-Identifier: Apache-2.0
"""Tests that bias, banned words and log probabilities act on the fake logits as they would on real ones."""

import itertools
import math
from collections.abc import Mapping, Sequence

import pytest

from serving.engines.simulated.fake_logits import FakeTokens

VOCAB = range(16, 100)


def toy(
    *candidates: int,
    bias: Mapping[int, float] | None = None,
    bad_words: Sequence[Sequence[int]] = (),
    prompt: Sequence[int] = (),
) -> FakeTokens:
    return FakeTokens(
        itertools.cycle(candidates), vocab=VOCAB, vocab_size=100, bias=bias or {}, bad_words=bad_words, prompt=prompt
    )


def take(tokens: FakeTokens, count: int) -> list[int]:
    return list(itertools.islice(tokens, count))


def test_without_bias_and_bad_words_the_candidates_win() -> None:
    assert take(toy(20, 21, 22), 4) == [20, 21, 22, 20]


def test_a_log_probability_is_the_softmax_of_the_logits() -> None:
    tokens = toy(21)  # 21 % 7 == 0: its logit is 6, those of 99 others are 0
    next(tokens)
    assert tokens.log_prob == pytest.approx(6 - math.log(math.exp(6) + 99))
    tokens = toy(21, bias={30: 8.0, 31: -1.0})  # 30 wins against 21, 31 and 97 others
    assert next(tokens) == 30
    assert tokens.log_prob == pytest.approx(8 - math.log(math.exp(8) + math.exp(6) + math.exp(-1) + 97))
    tokens = toy(21, bad_words=[[40], [41]])
    next(tokens)
    assert tokens.log_prob == pytest.approx(6 - math.log(math.exp(6) + 97)), "banned tokens have no share"


def test_a_high_bias_forces_a_token_and_a_low_one_keeps_it_out() -> None:
    assert take(toy(20, 21, bias={50: 100.0}), 3) == [50, 50, 50]
    assert take(toy(20, 21, bias={20: -100.0}), 3) == [21, 21, 21]
    assert take(toy(99, bias={99: -100.0}), 1) == [16], "after the last id comes the first that is not reserved"
    assert take(toy(20, bias={20: -1.0}), 1) == [20], "a small one changes the odds"


def test_a_bad_word_is_never_completed() -> None:
    assert take(toy(20, 21, 22, bad_words=[[20, 21]]), 4) == [20, 22, 22, 20]
    assert take(toy(20, bad_words=[[20]]), 2) == [21, 21]
    assert take(toy(20, bad_words=[[20], [20, 21], [21]]), 2) == [22, 22]


def test_a_bad_word_that_begins_in_the_prompt_is_not_completed_in_the_output() -> None:
    assert take(toy(21, bad_words=[[19, 20, 21]], prompt=[5, 19, 20]), 1) == [22]
    assert take(toy(21, bad_words=[[19, 20, 21]], prompt=[19, 5, 20]), 1) == [21]


def test_banning_every_token_leaves_none() -> None:
    assert take(toy(20, bad_words=[[token_id] for token_id in VOCAB]), 1) == []


def test_a_bias_beats_no_ban() -> None:
    assert take(toy(20, bias={50: 100.0}, bad_words=[[50]]), 1) == [20]
