# SPDX-License-Identifier: Apache-2.0
"""The search for the highest load that holds its targets, on servers whose limit is known."""

import pytest
from load_records import record, run, steady

from clients.load.capacity import MAX_TRIALS, Trial, highest, judge, search
from clients.load.figures.run_figures import figures_of
from clients.load.figures.slo import parse_targets

TARGETS = parse_targets("ttft_p99=60,e2e_p50=95", of_percentiles=True)


def limited(limit: float, tried: list[float]) -> object:
    def attempt(load: float) -> Trial:
        tried.append(load)
        return Trial(load=load, why_not="" if load <= limit else "too much", measured={}, run="")

    return attempt


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 123.0, 5000.0])
@pytest.mark.parametrize("start", [1.0, 12.0])
def test_the_limit_is_found_to_the_precision(limit: float, start: float) -> None:
    tried: list[float] = []
    best = highest(search(limited(limit, tried), start=start, precision=0.05))  # type: ignore[arg-type]
    assert best is not None
    assert limit / 1.05 <= best.load <= limit
    assert len(tried) <= MAX_TRIALS


@pytest.mark.parametrize("limit", [1, 3, 28, 100])
def test_users_are_whole(limit: int) -> None:
    tried: list[float] = []
    best = highest(search(limited(limit, tried), start=4.0, precision=0.01, is_whole=True))  # type: ignore[arg-type]
    assert best is not None
    assert best.load == pytest.approx(limit, rel=0.011)
    assert all(load == round(load) for load in tried)


@pytest.mark.parametrize("is_whole", [False, True])
def test_where_nothing_holds_it_ends(is_whole: bool) -> None:
    tried: list[float] = []
    assert highest(search(limited(0.0, tried), start=4.0, precision=0.05, is_whole=is_whole)) is None  # type: ignore[arg-type]
    assert len(tried) <= 12


def test_a_run_holds_when_every_percentile_does() -> None:
    good = run(steady(200))  # TTFT 50, E2E 90
    why_not, measured = judge(good, figures_of(good), TARGETS, max_error_share=0.01)
    assert why_not == ""
    assert measured == pytest.approx({"ttft_p99": 50, "e2e_p50": 90})
    slow = run(steady(200, ttft_ms=70))
    why_not, _ = judge(slow, figures_of(slow), TARGETS, max_error_share=0.01)
    assert why_not == "ttft_p99 70.0 ms > 60 ms; e2e_p50 110.0 ms > 95 ms"


def test_failures_and_a_growing_queue_do_not_hold_whatever_the_latencies() -> None:
    failing = run([*steady(200), *(record(number * 10, end="UNAVAILABLE") for number in range(200))])
    assert "failed > 1.0%" in judge(failing, figures_of(failing), TARGETS, max_error_share=0.01)[0]
    growing = run([record(n * 10, [(n * 10 + 30, 1), (n * 10 + 40 + n * 8, 1)]) for n in range(500)])
    lenient = parse_targets("ttft_p99=60", of_percentiles=True)
    assert judge(growing, figures_of(growing), lenient, max_error_share=0.01)[0] == "requests in flight kept rising"


def test_a_target_that_no_request_can_be_held_to_is_not_held() -> None:
    single = run([record(number * 10, [(number * 10 + 50, 1)]) for number in range(100)])
    targets = parse_targets("tpot_p99=50", of_percentiles=True)
    assert judge(single, figures_of(single), targets, max_error_share=0.01)[0] == "no request has a tpot"
