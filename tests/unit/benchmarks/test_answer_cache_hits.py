# SPDX-License-Identifier: Apache-2.0
"""The study of kept answers: the cache finds what renewal theory says, and the committed rows do."""

import asyncio

import pytest

from benchmarks.studies.answer_cache_hits import LOADS, Load, expected, measured
from documents.results import latest

pytestmark = pytest.mark.slow


def test_a_cache_of_questions_that_are_all_alike_finds_what_comes_again_in_time() -> None:
    load = Load(skew=0.0, ttl_s=300.0)
    # 20 requests/s over 10,000 questions: each comes 0.6 times in 300 s, and 0.6 of 1.6 requests find it.
    assert expected(load) == pytest.approx(0.6 / 1.6)
    assert asyncio.run(measured(load, seconds=1200, seed=3)) == pytest.approx(0.375, abs=0.02)


def test_the_committed_rows_are_what_theory_says_where_memory_is_no_bound() -> None:
    rows = latest("answer_cache_hits")["rows"]
    assert len(rows) == len(LOADS)
    free = [row for row in rows if row["max_mib"] == 64]
    assert [row["hit_share"] for row in free] == pytest.approx([row["expected"] for row in free], abs=0.02)
    assert all(row["hit_share"] < row["expected"] for row in rows if row["max_mib"] == 1)
