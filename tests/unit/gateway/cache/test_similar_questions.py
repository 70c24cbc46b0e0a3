# SPDX-License-Identifier: Apache-2.0
"""The questions that are remembered by their vectors: the most alike of a scope, bounded, and forgotten in turn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from gateway.cache.similar_questions import SimilarQuestions


def vector(*values: float) -> NDArray[np.float32]:
    return np.array(values, np.float32)


def test_the_most_alike_is_found_where_it_is_alike_enough() -> None:
    questions = SimilarQuestions(max_questions=10)
    questions.add("s", vector(1, 0), "a")
    questions.add("s", vector(0, 2), "b")
    found = questions.find("s", vector(1, 3), least_similarity=0.5)
    assert found is not None
    assert (found.name, round(found.similarity, 4)) == ("b", round(3 / 10**0.5, 4))
    assert questions.find("s", vector(-1, -1), least_similarity=0.1) is None
    assert questions.find("s", vector(1, 1), least_similarity=0.9) is None


def test_nothing_of_another_scope_is_found() -> None:
    questions = SimilarQuestions(max_questions=10)
    questions.add("mine", vector(1, 0), "a")
    assert questions.find("yours", vector(1, 0), least_similarity=0.1) is None


def test_the_one_that_nobody_met_the_longest_goes_first() -> None:
    questions = SimilarQuestions(max_questions=2)
    questions.add("s", vector(1, 0), "a")
    questions.add("t", vector(0, 1), "b")
    assert questions.find("s", vector(1, 0), least_similarity=0.9) is not None
    questions.add("s", vector(0, 1), "c")
    assert len(questions) == 2
    assert questions.find("t", vector(0, 1), least_similarity=0.9) is None
    assert questions.find("s", vector(1, 0), least_similarity=0.9) is not None


def test_a_question_that_is_asked_again_is_remembered_once() -> None:
    questions = SimilarQuestions(max_questions=10)
    for _ in range(3):
        questions.add("s", vector(1, 0), "a")
    assert len(questions) == 1


def test_vectors_of_another_width_are_not_compared() -> None:
    questions = SimilarQuestions(max_questions=10)
    questions.add("s", vector(1, 0), "a")
    assert questions.find("s", vector(1, 0, 0), least_similarity=0.1) is None


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=120), st.integers(1, 30))
def test_whatever_comes_and_goes_the_best_of_what_is_left_is_found(
    steps: list[tuple[int, bool]], max_questions: int
) -> None:
    angles = {number: number / 10 for number in range(41)}
    vectors = {number: vector(np.cos(angle), np.sin(angle)) for number, angle in angles.items()}
    questions = SimilarQuestions(max_questions=max_questions)
    left: list[int] = []
    for number, is_added in steps:
        if number in left:
            left.remove(number)
        if is_added:
            questions.add("s", vectors[number], str(number))
            left = [*left, number][-max_questions:]
        else:
            questions.drop("s", str(number))
    assert len(questions) == len(left)
    wanted = vector(np.cos(2.05), np.sin(2.05))
    found = questions.find("s", wanted, least_similarity=-1.0)
    if not left:
        assert found is None
        return
    assert found is not None
    assert found.similarity == pytest.approx(max(float(wanted @ vectors[number]) for number in left), abs=1e-6)
