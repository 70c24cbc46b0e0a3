# SPDX-License-Identifier: Apache-2.0
"""The expression for many texts finds the matches of their alternation, in time that does not grow with them."""

import random
import re
import time

from serving.text.special_texts import longest_of

RESERVED = [f"<|reserved_special_token_{number}|>" for number in range(248)]
TEXTS = [*RESERVED, "<|eot_id|>", "<|begin_of_text|>", "<s>", "</s>", "<|", "[INST]", "[/INST]", "a.b", "é", "<s><s>"]


def test_it_finds_the_longest_of_those_that_begin_at_a_place() -> None:
    longest_first = re.compile("|".join(map(re.escape, sorted(TEXTS, key=len, reverse=True))))
    found = longest_of(TEXTS)
    choose = random.Random(3)
    for _ in range(3000):
        parts = [*TEXTS, "<", "|", ">", "axb", "<|reserved_special_token_1", " "]
        text = "".join(choose.choice(parts) for _ in range(12))
        assert found.findall(text) == longest_first.findall(text)


def test_of_no_texts_nothing_is_found() -> None:
    assert longest_of([]).search("anything") is None


def test_a_text_of_beginnings_takes_no_longer_for_many_texts_than_for_few() -> None:
    text = "<|" * 100_000

    def took_s(texts: list[str]) -> float:
        expression = longest_of(texts)
        times = []
        for _ in range(5):
            begin_s = time.perf_counter()
            expression.sub("", text)
            times.append(time.perf_counter() - begin_s)
        return min(times)

    many = ["<s>", *RESERVED]
    assert took_s(many) < 5 * took_s(many[:3])  # an alternation: 80 times
