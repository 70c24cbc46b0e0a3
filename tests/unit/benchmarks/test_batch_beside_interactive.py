# SPDX-License-Identifier: Apache-2.0
"""The figures of the benchmark of batch jobs: visible arithmetic, and the committed ones from their segments."""

import json

import msgspec
import pytest

from benchmarks.overload import ENGINE
from benchmarks.studies.batch_beside_interactive import Segment, figures_of
from benchmarks.studies.batch_share_in_virtual_time import MEAN_TOKENS, Run, ratios
from benchmarks.support.report import RESULTS

pytestmark = pytest.mark.slow

NEWEST = max(RESULTS.glob("batch_beside_interactive_*.json"))


def segment(pair: int, *, is_beside: bool, ttft_ms: float, batch_tokens_per_s: float = 0.0) -> Segment:
    return Segment(
        pair=pair, is_beside=is_beside, ttft_ms=[ttft_ms] * 10, tpot_ms=[40.0], num_failed=0,
        interactive_tokens_per_s=100.0, batch_tokens_per_s=batch_tokens_per_s,
    )  # fmt: skip


def test_the_ratio_is_beside_over_alone_and_idle_is_what_interactive_leaves() -> None:
    segments = [
        segment(0, is_beside=True, ttft_ms=110.0, batch_tokens_per_s=75.0), segment(0, is_beside=False, ttft_ms=100.0),
        segment(1, is_beside=False, ttft_ms=100.0), segment(1, is_beside=True, ttft_ms=110.0, batch_tokens_per_s=75.0),
    ]  # fmt: skip
    figures = figures_of(segments, capacity_tokens_per_s=200.0)
    assert figures["interactive_ttft_p99_ratio"] == pytest.approx({"value": 1.1, "low": 1.1, "high": 1.1})
    assert figures["total_over_capacity"] == pytest.approx((100 + 75) / 200)
    assert figures["idle_capacity_filled"] == pytest.approx(75 / (200 - 100))


def test_the_committed_figures_follow_from_the_committed_segments() -> None:
    for run in json.loads(NEWEST.read_text())["runs"]:
        segments = msgspec.convert(run["segments"], list[Segment])
        found = figures_of(segments, run["figures"]["capacity_tokens_per_s"])
        assert json.loads(json.dumps(found)) == run["figures"]
        assert sum(len(one.ttft_ms) for one in segments) > 100


@pytest.mark.parametrize("seconds", [120.0, pytest.param(300.0, marks=pytest.mark.soak)])
def test_a_job_that_leaves_a_quarter_of_the_engine_moves_p99_ttft_by_less_than_5_percent_and_fills_over_half(
    seconds: float,
) -> None:
    """In virtual time, so it is the same on every machine; half of the capacity is interactive."""
    capacity = Run(ENGINE, 1.0, 1).measure(per_s=0.0, num_batch=128, seconds=seconds).batch_tokens_per_s
    per_s = 0.5 * capacity / MEAN_TOKENS
    alone = Run(ENGINE, 1.0, 1).measure(per_s=per_s, num_batch=0, seconds=seconds)
    found = {
        share: ratios(alone, Run(ENGINE, share, 1).measure(per_s=per_s, num_batch=64, seconds=seconds), capacity)
        for share in (0.75, 1.0)
    }
    assert found[0.75]["ttft_p99_ratio"] < 1.05
    assert found[0.75]["idle_capacity_filled"] > 0.5
    assert found[1.0]["ttft_p99_ratio"] > 1.5  # what the share is for
