# SPDX-License-Identifier: Apache-2.0
"""The fit of the recorded latency models."""

import math
import random

import pytest

from benchmarks.overload_figures import Record
from benchmarks.rollout_gate.latency_models import FILE, fit, load_models, rendered
from benchmarks.support.report import RESULTS


def records(num: int, *, common_sd: float = 0.0) -> list[Record]:
    """Return records of two prompt lengths, 50 and 100 ms, sd 0.2; TPOT 20 ms, sd 0.1; ten requests a second."""
    rng, found, common = random.Random(1), [], 0.0
    for number in range(num):
        if number % 100 == 0:  # every 10 s
            common = rng.gauss(0, common_sd)
        length = rng.choice([16, 64])
        first_ms = (50 if length == 16 else 100) * math.exp(rng.gauss(0, 0.2) + common)
        tokens, tpot_ms = rng.randint(2, 60), 20 * rng.lognormvariate(0, 0.1)
        last_ms = first_ms + (tokens - 1) * tpot_ms
        found.append(
            Record(
                priority=1,
                num_prompt_tokens=length,
                max_tokens=60,
                due_s=number / 10,
                first_ms=first_ms,
                last_ms=last_ms,
                num_tokens=tokens,
                end="done",
            )
        )
    return found


def test_a_fit_finds_what_the_records_were_drawn_from() -> None:
    model = fit(records(5000))
    assert [stratum.ttft_ms for stratum in model.strata] == pytest.approx([50, 100], rel=0.02)
    assert [stratum.share for stratum in model.strata] == pytest.approx([0.5, 0.5], abs=0.03)
    assert [model.ttft_sd, model.tpot_sd] == pytest.approx([0.2, 0.1], rel=0.05)
    assert model.ttft_quantiles[50] == pytest.approx(0, abs=0.01)  # the median
    assert model.burst_sd < 0.02


def test_what_all_requests_of_ten_seconds_share_is_found() -> None:
    assert fit(records(20_000, common_sd=0.1)).burst_sd == pytest.approx(0.1, rel=0.15)


def test_requests_that_failed_tell_nothing() -> None:
    good = records(500)
    failed = [Record(priority=1, num_prompt_tokens=999, max_tokens=5, end="DEADLINE", due_s=1.0)] * 50
    assert fit(good + failed) == fit(good)


def test_the_committed_models_are_those_of_the_records_that_they_name() -> None:
    text = FILE.read_text(encoding="utf-8")
    source = next(line.split("results/")[1].rstrip(".") for line in text.splitlines() if "results/overload" in line)
    assert rendered(text, RESULTS / source) == text


def test_what_the_gate_is_promised_for_is_as_it_was_fixed() -> None:
    steady = load_models()["steady"]
    assert (steady.ttft_sd, steady.tpot_sd, steady.tail_share, steady.tail_index) == (0.5, 0.25, 0.01, 2.0)
