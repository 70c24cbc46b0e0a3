# SPDX-License-Identifier: Apache-2.0
"""Statistics of the quality gate, with numbers small enough to be checked by eye."""

import math

import numpy as np
import pytest

from build_engines.evaluation.observations import (
    Observation,
    is_right,
    metrics_of,
    num_equal,
    observe_answer,
    observe_text,
)
from build_engines.evaluation.tasks import Item, Kind
from build_engines.evaluation.verdict import (
    Figure,
    figures_of,
    interval_of_ratio,
    ratio_of_sums,
    unseen_share,
    verdict_of,
    worst_of,
)
from build_engines.recipes.recipe_parts import QualitySpec
from trireme.base.errors import SpecError

SEED = 7


def drops(group: str, *amounts: float) -> list[Observation]:
    return [Observation("facts", group, "accuracy_drop", amount, 1.0, 1.0 - amount, 1.0) for amount in amounts]


def judge(observations: list[Observation], **limits: float) -> list[Figure]:
    return figures_of(observations, QualitySpec.model_validate(limits), seed=SEED)


def test_a_figure_is_a_mean_over_weights_not_over_items() -> None:
    # one item of 1 token with 3, one of 9 tokens with 1 each: (3 + 9) / 10, not (3 + 1) / 2
    assert ratio_of_sums(np.array([3.0, 9.0]), np.array([1.0, 9.0])) == 1.2


def test_the_interval_of_a_share_is_the_binomials() -> None:
    amounts = np.array([1.0] * 30 + [0.0] * 70)
    low, high = interval_of_ratio(amounts, np.ones(100), seed=SEED)
    # 0.3 +- 1.96 sqrt(0.3 * 0.7 / 100) = 0.3 +- 0.0898
    assert low == pytest.approx(0.21, abs=0.015)
    assert high == pytest.approx(0.39, abs=0.015)


def test_pairing_takes_out_what_both_models_find_hard() -> None:
    # Items differ by 0 to 99 nats, the two models by 1 on every item: the difference is certain.
    base = np.arange(100.0)
    low, high = interval_of_ratio((base + 1) - base, np.ones(100), seed=SEED)
    assert (low, high) == (1.0, 1.0)
    low, high = interval_of_ratio(base + 1, np.ones(100), seed=SEED)
    assert high - low > 5


def test_what_was_seen_in_none_of_twenty_items_may_still_be_in_one_of_six() -> None:
    assert unseen_share(20) == pytest.approx(0.1684, abs=1e-4)
    assert (1 - unseen_share(20)) ** 20 == pytest.approx(0.025)


def test_a_group_without_a_difference_is_not_taken_for_certain() -> None:
    (figure,) = judge(drops("en", *[0.0] * 20), accuracy_drop_max=0.05)
    assert figure.interval == pytest.approx((-0.1684, 0.1684), abs=1e-4)
    assert figure.passed is True
    assert figure.is_certain is False


def test_the_worst_group_decides_and_not_the_mean() -> None:
    # 1 of 100 lost in English, 3 of 10 in Hindi: the mean of all items is 4 / 110 = 3.6 %
    observations = [*drops("en", *[0.0] * 99, 1.0), *drops("hi", *[0.0] * 7, *[1.0] * 3)]
    figures = judge(observations, accuracy_drop_max=0.05)
    assert [(figure.group, figure.value, figure.passed) for figure in figures] == [
        ("en", 0.01, True),
        ("hi", 0.3, False),
    ]
    assert worst_of(figures)["accuracy_drop"].group == "hi"
    assert verdict_of(figures) is False
    assert verdict_of(judge(observations, accuracy_drop_max=0.3)) is True


def test_gains_in_one_group_do_not_pay_for_losses_in_another() -> None:
    figures = judge([*drops("en", *[-1.0] * 10), *drops("de", 1.0, *[0.0] * 9)], accuracy_drop_max=0.05)
    assert verdict_of(figures) is False


def test_of_agreement_the_lowest_is_the_worst() -> None:
    observations = [Observation("chat", "en", "agreement", 9, 10), Observation("chat", "zh", "agreement", 4, 10)]
    figures = judge(observations, agreement_min=0.5)
    assert worst_of(figures)["agreement"].group == "zh"
    assert [figure.passed for figure in figures] == [True, False]


def test_a_value_at_its_limit_passes() -> None:
    assert verdict_of(judge(drops("en", 1.0, *[0.0] * 9), accuracy_drop_max=0.1)) is True
    assert verdict_of(judge(drops("en", 1.0, *[0.0] * 9), accuracy_drop_max=0.0999)) is False


def test_without_limits_nothing_is_judged() -> None:
    figures = judge(drops("en", 1.0, 1.0))
    assert figures[0].passed is None
    assert verdict_of(figures) is None


def test_perplexities_are_compared_by_their_ratio() -> None:
    # two texts of 2 tokens; the base needs 2 and 4 nats, the release 3 and 5
    observations = [
        Observation("text", "en", "perplexity_ratio", ours - theirs, 2, ours, theirs)
        for ours, theirs in ((3, 2), (5, 4))
    ]
    (figure,) = judge(observations, perplexity_ratio_max=1.5)
    assert figure.value == pytest.approx(math.exp((8 - 6) / 4))
    assert figure.candidate == pytest.approx(math.exp(8 / 4))
    assert figure.baseline == pytest.approx(math.exp(6 / 4))
    assert figure.interval == pytest.approx((math.exp(0.5), math.exp(0.5)))
    assert figure.passed is False  # 1.65 > 1.5


def test_a_limit_of_what_was_not_measured_is_refused() -> None:
    with pytest.raises(SpecError, match="the recipe has kl_max, and nothing was found about it"):
        judge(drops("en", 0.0), kl_max=0.1)


def test_likelihood_and_divergence_of_a_text() -> None:
    item = Item("text", Kind.TEXT, "en", expected="ab")
    base = np.log(np.array([[0.5, 0.5], [0.25, 0.75]], dtype=np.float32))
    candidate = np.log(np.array([[0.75, 0.25], [0.25, 0.75]], dtype=np.float32))
    perplexity, kl = observe_text(item, base, candidate, np.array([0, 1]))
    assert perplexity.candidate == pytest.approx(-math.log(0.75) - math.log(0.75))
    assert perplexity.baseline == pytest.approx(-math.log(0.5) - math.log(0.75))
    assert perplexity.amount == pytest.approx(-math.log(0.75) + math.log(0.5))
    assert kl.amount == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25), abs=1e-6)
    assert (perplexity.weight, kl.weight) == (2, 2)


def test_a_model_that_gives_no_numbers_fails() -> None:
    item = Item("text", Kind.TEXT, "en", expected="a")
    base = np.log(np.array([[0.5, 0.5]], dtype=np.float32))
    observations = observe_text(item, base, np.full((1, 2), np.nan, dtype=np.float32), np.array([0]))
    figures = judge(observations, perplexity_ratio_max=1e6, kl_max=50)
    assert [figure.passed for figure in figures] == [False, False]
    assert all(math.isfinite(figure.value) for figure in figures)


def test_agreement_ends_at_the_first_difference() -> None:
    assert num_equal([1, 2, 3, 4], [1, 2, 9, 4]) == 2
    assert num_equal([1, 2], [1, 2, 3]) == 2
    assert num_equal([], [1]) == 0
    item = Item("facts", Kind.EXACT, "en", "?", " yes")
    found = observe_answer(item, [5, 6, 7, 8], [5, 9, 7, 8], (" yes", " no"))
    assert [(each.metric, each.amount, each.weight) for each in found] == [
        ("agreement", 1, 4),
        ("exact_match", 0.0, 1.0),
        ("accuracy_drop", 1.0, 1.0),
    ]


def test_an_answer_is_right_when_it_is_the_expected_one() -> None:
    exact, needle = (Item("t", kind, "en", "?", " Lucy") for kind in (Kind.EXACT, Kind.NEEDLE))
    assert is_right(exact, " Lucy")
    assert not is_right(exact, " Lucy came")
    assert is_right(needle, " Lucy came")
    assert not is_right(needle, " Mia, not Lucy")


@pytest.mark.parametrize("kind", list(Kind))
def test_an_item_tells_what_its_kind_promises(kind: Kind) -> None:
    item = Item("t", kind, "en", "?", " yes")
    if kind is Kind.TEXT:
        found = observe_text(item, np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32), np.array([0]))
    else:
        found = observe_answer(item, [1], [1], (" yes", " yes"))
    assert tuple(each.metric for each in found) == metrics_of(kind)
