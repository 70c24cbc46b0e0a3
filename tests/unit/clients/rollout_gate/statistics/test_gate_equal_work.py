# SPDX-License-Identifier: Apache-2.0
"""The arms at equal work: what the work explains is taken out, and what is left is bounded."""

import math

import numpy as np
import pytest
from gate_rows import rows_of

from clients.rollout_gate.statistics.equal_work import EqualWork, broken_line, broken_lines
from clients.rollout_gate.statistics.work import PROMPT_KNOTS, decode_work, prefill_work, prompt_work
from clients.rollout_gate.sums.bounded import Likes
from clients.rollout_gate.sums.mean_sums import FIRST_ROWS, MeanSums
from ensemble_configs.split.outcome import Outcome
from ensemble_configs.split.places import stratum_of


def test_a_line_bends_at_its_knots() -> None:
    assert broken_line(6.0, (2.0, 5.0, 8.0)) == (6.0, 4.0, 1.0, 0.0)
    assert [each.tolist() for each in broken_lines(np.array([6.0, 1.0]), (2.0,))] == [[6.0, 1.0], [4.0, 0.0]]


def test_prefill_work_is_of_the_tokens_that_are_computed() -> None:
    whole = prefill_work(Outcome(arm="a", num_prompt_tokens=1023))
    assert whole[0] == 10
    partly = prefill_work(Outcome(arm="a", num_prompt_tokens=2023, num_cached_tokens=1000))
    assert partly[: len(PROMPT_KNOTS) + 1] == whole[: len(PROMPT_KNOTS) + 1]
    assert (whole[-2], partly[-2]) == (0.0, 1.0)  # a hit has a part of its own


def test_without_the_engine_s_account_the_prompt_s_length_stands_for_it() -> None:
    chars = 4 * 600
    told = prefill_work(Outcome(arm="a", num_prompt_tokens=600))[0]
    assert prefill_work(Outcome(arm="a", stratum=stratum_of(chars)))[0] == pytest.approx(told, abs=1)
    assert prompt_work(Outcome(arm="a", stratum=stratum_of(chars)))[0] == pytest.approx(math.log2(601), abs=1)
    assert set(decode_work(Outcome(arm="a"))) == {0.0}


def test_the_regression_is_least_squares_and_its_prediction_leaves_the_arm_out() -> None:
    rng = np.random.default_rng(1)
    size, arm = rng.normal(8, 2, 4000), rng.random(4000) < 0.3
    value = 1.0 + 0.7 * size + 0.2 * arm + rng.normal(0, 0.1, 4000)
    work = EqualWork((), 1)
    rows = rows_of(value, arm, work=size[:, np.newaxis])
    work.add(rows)
    work.fit()
    columns = np.column_stack([np.ones(4000), size, arm])
    assert work.coefficients == pytest.approx(np.linalg.lstsq(columns, value, rcond=None)[0], abs=1e-3)
    left = work.left(rows)
    assert left[arm].mean() - left[~arm].mean() == pytest.approx(0.2, abs=0.02)


def test_bounded_figures_are_about_the_median_and_at_most_one_and_a_half_deviations() -> None:
    likes, rng = Likes(()), np.random.default_rng(2)
    figures = rng.normal(0.5, 0.2, 20_000)
    likes.add(figures)
    likes.fit()
    assert float(likes.centre) == pytest.approx(0.5, abs=0.02)
    assert float(likes.scale) == pytest.approx(0.2, rel=0.05)
    bounded, is_inside = likes.bounded(np.array([0.5, 100.0, -100.0, np.nan]))
    assert bounded[:3] == pytest.approx([0.0, 1.5 * 0.2, -1.5 * 0.2], abs=0.03)
    assert np.isnan(bounded[3])
    assert is_inside.tolist() == [True, False, False, False]


def test_a_few_requests_that_take_a_hundred_times_as_long_do_not_move_the_scale() -> None:
    likes, rng = Likes(()), np.random.default_rng(3)
    likes.add(np.concatenate([rng.normal(0, 0.2, 9500), rng.normal(math.log(100), 0.2, 500)]))
    likes.fit()
    assert float(likes.scale) == pytest.approx(0.2, rel=0.15)


def mean_sums(*, longer: float, slope: float = 0.7, seed: int = 4) -> MeanSums:
    """Return the sums of a candidate of other, longer prompts, `longer` in logarithms at equal work."""
    sums, rng = MeanSums((), 1), np.random.default_rng(seed)
    for _ in range(40):
        arm = np.repeat([True, False], 25)
        size = rng.normal(np.where(arm, 9.0, 8.0), 1)
        value = slope * size + longer * arm + rng.normal(0, 0.2, 50)
        sums.add(rows_of(value, arm, work=size[:, np.newaxis]))
        sums.close()
    return sums


@pytest.mark.parametrize("longer", [0.0, 0.1])
def test_longer_prompts_of_one_arm_are_no_longer_times(longer: float) -> None:
    differences = mean_sums(longer=longer).differences()
    error = 1 / math.sqrt(float(differences.information))
    assert float(differences.estimate) == pytest.approx(longer, abs=4 * error)
    assert error < 0.02


def test_the_information_is_that_of_the_spread_of_estimates() -> None:
    found = [mean_sums(longer=0.0, seed=seed).differences() for seed in range(60)]
    deviations = [float(one.estimate) * math.sqrt(float(one.information)) for one in found]
    assert np.std(deviations) == pytest.approx(1.0, abs=0.3)  # three standard errors of the standard deviation


def test_the_first_requests_wait_for_one_another() -> None:
    sums = MeanSums((), 0)
    few = rows_of(np.zeros(FIRST_ROWS - 1), np.zeros(FIRST_ROWS - 1, bool))
    assert sums.add(few) is None
    told = sums.add(rows_of([0.0], [True]))
    assert told is not None
    assert told.over.shape == (FIRST_ROWS,)
