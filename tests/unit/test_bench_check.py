# SPDX-License-Identifier: Apache-2.0
"""What got worse is told by intervals, whichever way is good, for every result that is committed."""

import json

import pytest

from benchmarks.check import CHECKS, Check, Ratio, compared, verdict
from benchmarks.report import RESULTS

OLD = Ratio(0.97, 0.95, 0.99)


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (Ratio(0.95, 0.93, 0.97), "same"),  # the intervals meet
        (Ratio(0.93, 0.92, 0.94), "same"),  # lower by less than 3 %
        (Ratio(0.90, 0.88, 0.92), "worse"),
        (Ratio(1.05, 1.03, 1.07), "better"),
        (Ratio(0.80, 0.50, 1.10), "same"),  # not measured well enough to say
    ],
)
def test_a_ratio_got_worse_when_its_interval_lies_on_the_bad_side(new: Ratio, expected: str) -> None:
    assert verdict(new, OLD, is_more_better=True) == expected
    other = {"worse": "better", "better": "worse"}.get(expected, expected)
    assert verdict(new, OLD, is_more_better=False) == other


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.module)
def test_a_committed_result_is_as_good_as_itself_and_worse_than_one_that_was_better(check: Check) -> None:
    paths = sorted(RESULTS.glob(check.committed))
    assert paths
    found = json.loads(paths[-1].read_text())
    rows = compared(check, found, found)
    assert rows
    assert {word for *_, word in rows} == {"same"}
    factor = 0.5 if check.is_more_better else 2.0
    worse = [
        verdict(Ratio(*(factor * value for value in now)), then, is_more_better=check.is_more_better)
        for _, now, then, _ in rows
        if then.high / then.low < 1.5
    ]
    assert set(worse) == {"worse"}
