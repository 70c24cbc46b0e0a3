# SPDX-License-Identifier: Apache-2.0
"""The hits and the wrong hits of labelled pairs, by similarity; and files that hold none."""

import json
from pathlib import Path

import numpy as np
import pytest

from gateway.cache.wrong_hits import LabelledPair, levels, read_pairs, similarities
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

PAIRS = [LabelledPair("a", str(number), has_same_answer=number % 2 == 0) for number in range(6)]
FOUND = np.array([0.9, 0.8, 0.7, 0.95, 0.2, 0.1])  # same answers: 0.9, 0.7, 0.2


def test_a_pair_is_a_hit_where_it_is_at_least_so_alike_and_wrong_where_its_answers_differ() -> None:
    low, middle, high, none = levels(FOUND, PAIRS, [0.0, 0.8, 0.93, 0.99])
    assert (low.hits, low.wrong_hits, low.wrong_share) == (6, 3, 0.5)
    assert (low.found_share, low.wrong_share_of_different) == (1.0, 1.0)
    assert (middle.hits, middle.wrong_hits) == (3, 2)
    assert middle.found_share == pytest.approx(1 / 3)
    assert middle.wrong_share_of_different == pytest.approx(2 / 3)
    assert (high.hits, high.wrong_hits, high.wrong_share, high.found_share) == (1, 1, 1.0, 0.0)
    assert (none.hits, none.wrong_hits, none.wrong_share, none.wrong_share_interval) == (0, 0, None, None)


def test_few_pairs_without_a_wrong_hit_prove_little() -> None:
    ten = [LabelledPair("a", "b", has_same_answer=True)] * 10
    [level] = levels(np.ones(10), ten, [0.9])
    assert level.wrong_share == 0
    assert level.wrong_share_interval is not None
    low, high = level.wrong_share_interval
    assert low == 0
    assert high == pytest.approx(1 - 0.025 ** (1 / 10))  # the rule for none of ten
    assert level.wrong_share_of_different is None


def test_a_similarity_is_the_cosine() -> None:
    questions = np.array([[1, 0], [2, 0], [0, 0]], np.float32)
    others = np.array([[0, 3], [1, 1], [1, 0]], np.float32)
    assert similarities(questions, others) == pytest.approx([0, 2**-0.5, 0])


def test_a_file_has_a_pair_in_each_line(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    pair = {"question": "a", "other": "b", "has_same_answer": True, "kind": "reworded"}
    file.write_text(f"{json.dumps(pair)}\n\n{json.dumps(pair | {'has_same_answer': False, 'kind': ''})}\n")
    assert read_pairs(file) == [LabelledPair("a", "b", True, "reworded"), LabelledPair("a", "b", False)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no pairs"),
        ("{", "pairs.jsonl:1: "),
        ('{"question": "a", "other": "b"}', "has_same_answer"),
        ('{"question": "a", "other": "b", "has_same_answer": "yes"}', "has_same_answer"),
        ('{"question": "a", "other": "b", "has_same_answer": true, "same": 1}', "same"),
        ('{"question": "a", "other": "", "has_same_answer": true}', ":1: a question is empty"),
        ('{"question": "\\ud800", "other": "b", "has_same_answer": true}', ":1: "),
    ],
)
def test_what_is_no_pair_is_refused_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text(text)
    with pytest.raises(SpecError) as refused:
        read_pairs(file)
    assert said in refused.value.message
    with pytest.raises(SpecError, match="cannot read"):
        read_pairs(tmp_path / "none.jsonl")


def test_the_committed_pairs_have_both_labels_and_no_pair_twice() -> None:
    pairs = read_pairs(CODE_ROOT / "examples/semantic_cache/pairs.jsonl")
    assert len({(pair.question, pair.other) for pair in pairs}) == len(pairs) >= 140
    assert sum(pair.has_same_answer for pair in pairs) >= 60
    assert sum(not pair.has_same_answer for pair in pairs) >= 75
    assert all(pair.kind and pair.question != pair.other for pair in pairs)
