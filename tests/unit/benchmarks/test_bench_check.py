# SPDX-License-Identifier: Apache-2.0
"""Results that got worse are found by intervals, whichever way is good, for every result that is committed; it has to
do so twice, and beside results of the same processor.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from benchmarks.check import (
    CHECKS,
    OTHER_CPU,
    UNSTEADY,
    Check,
    Ratio,
    Reference,
    Result,
    checked,
    checked_out,
    committed_reference,
    compared,
    verdict,
)
from benchmarks.support.report import RESULTS

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
    rows = compared(check, found, Reference(paths[-1].name, found, is_same_cpu=True))
    assert rows
    assert {row.word for row in rows} == {"same"}
    factor = 0.5 if check.is_more_better else 2.0
    worse = [
        verdict(Ratio(*(factor * value for value in row.now)), row.then, is_more_better=check.is_more_better)
        for row in rows
        if row.then.high / row.then.low < 1.5
    ]
    assert set(worse) == {"worse"}


def _found(ratio: float, cpu: str = "this", date: str = "2026-11-20") -> Result:
    return {"ratio": ratio, "environment": {"cpu": cpu, "date": date}}


ONE = Check("one", (), "one_*.json", lambda result: {"ratio": Ratio(*[result["ratio"]] * 3)}, is_more_better=True)


@pytest.mark.parametrize(
    ("measured", "expected", "num_left"),
    [([1.0, 0.1], "same", 1), ([0.5, 0.5], "worse", 0), ([0.5, 1.0], UNSTEADY, 0), ([0.5, 2.0], UNSTEADY, 0)],
)
def test_what_got_worse_is_measured_again_and_has_to_be_worse_again(
    measured: list[float], expected: str, num_left: int
) -> None:
    left: Iterator[float] = iter(measured)

    rows = checked(ONE, lambda: _found(next(left)), lambda: Reference("old", _found(1.0), is_same_cpu=True))

    assert [row.word for row in rows] == [expected]
    assert len(list(left)) == num_left


def test_committed_results_of_this_processor_come_first_and_those_of_another_are_no_verdict(tmp_path: Path) -> None:
    for name, found in (("one_1", _found(1.0)), ("one_2", _found(2.0, cpu="other", date="2026-11-22"))):
        (tmp_path / f"{name}.json").write_text(json.dumps(found))

    assert committed_reference(ONE, "this", tmp_path).name == "one_1.json"
    third = committed_reference(ONE, "third", tmp_path)
    assert third.name == "one_2.json"
    assert [row.word for row in checked(ONE, lambda: _found(0.1), lambda: third)] == [OTHER_CPU]


def test_another_revision_is_checked_out_beside_this_one_and_goes_again() -> None:
    with checked_out("HEAD") as root:
        assert (root / "benchmarks" / "check.py").is_file()
        assert (root / ".tools").is_symlink()
    assert not root.exists()


def test_a_revision_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(typer.BadParameter, match=r"--against none-such: .*none-such"), checked_out("none-such"):
        pass
