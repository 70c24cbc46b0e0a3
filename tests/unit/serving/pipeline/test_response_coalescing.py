# SPDX-License-Identifier: Apache-2.0
"""Tokens leave together where that delays no first token."""

from functools import partial

import pytest
from manual_clock import ManualClock

from serving.engines.seam.base import FinishReason, PerfMetrics, TokenChunk
from serving.pipeline.response_coalescing import ResponseCoalescer


def token(key: int, token_id: int, finish_reason: FinishReason | None = None) -> TokenChunk:
    return TokenChunk(key, [token_id], finish_reason)


def test_what_is_here_at_the_same_time_leaves_together_in_order() -> None:
    gather = ResponseCoalescer(lambda: 0.0)
    sent = gather.due([token(1, 10), token(2, 20), token(1, 11, FinishReason.LENGTH)])
    assert sent == [TokenChunk(1, [10, 11], FinishReason.LENGTH), TokenChunk(2, [20])]
    assert gather.due([]) == []


def test_log_probabilities_go_with_their_tokens_and_the_last_chunk_keeps_what_it_tells() -> None:
    perf = PerfMetrics(1, 2, 3, 4)
    chunks = [
        TokenChunk(1, [10], log_probs=[-1.0]),
        TokenChunk(1, [11, 12], log_probs=[-2.0, -3.0]),
        TokenChunk(1, [], FinishReason.CANCELLED, perf=perf),
    ]
    assert ResponseCoalescer(lambda: 0.0).due(chunks) == [
        TokenChunk(1, [10, 11, 12], FinishReason.CANCELLED, log_probs=[-1.0, -2.0, -3.0], perf=perf)
    ]


def test_what_the_engine_says_of_a_stream_that_has_ended_changes_its_end_no_more() -> None:
    # A request that was finished when its cancellation arrived is answered twice: LENGTH, then CANCELLED.
    for delay_s in (0.0, 0.010):
        gather = ResponseCoalescer(partial(float, delay_s))
        sent = gather.due([token(1, 10, FinishReason.LENGTH), TokenChunk(1, [], FinishReason.CANCELLED)])
        assert sent == [TokenChunk(1, [10], FinishReason.LENGTH)]


def test_first_tokens_and_last_ones_do_not_wait_and_others_do() -> None:
    clock = ManualClock()
    gather = ResponseCoalescer(lambda: 0.010, now_s=clock)
    assert gather.due([token(1, 10)]) == [TokenChunk(1, [10])]
    clock.now_s += 0.004
    assert gather.due([token(1, 11), token(2, 20)]) == [TokenChunk(2, [20])]
    clock.now_s += 0.004
    assert gather.due([token(1, 12)]) == []
    clock.now_s += 0.004
    assert gather.due([token(1, 13)]) == [TokenChunk(1, [11, 12, 13])]
    assert gather.due([token(1, 14, FinishReason.STOP)]) == [TokenChunk(1, [14], FinishReason.STOP)]


def test_the_delay_may_change_and_holds_for_what_waits() -> None:
    clock, delay_s = ManualClock(), 0.050
    gather = ResponseCoalescer(lambda: delay_s, now_s=clock)
    gather.due([token(1, 10)])
    clock.now_s += 0.010
    assert gather.due([token(1, 11)]) == []
    delay_s = 0.010
    assert gather.due() == [TokenChunk(1, [11])]


def test_it_tells_how_long_the_stream_that_has_waited_longest_may_still_wait() -> None:
    clock = ManualClock()
    gather = ResponseCoalescer(lambda: 0.010, now_s=clock)
    assert gather.wait_s() is None
    gather.due([token(1, 10)])
    assert gather.wait_s() is None, "it has left"
    clock.now_s += 0.004
    gather.due([token(2, 20)])
    gather.due([token(1, 11), token(2, 21)])
    assert gather.wait_s() == pytest.approx(0.006)
    clock.now_s += 0.006001
    assert gather.wait_s() == 0.0
    assert gather.due() == [TokenChunk(1, [11])]
    assert gather.wait_s() == pytest.approx(0.004, abs=1e-5)


def test_nothing_is_kept_of_a_stream_that_has_ended_or_an_engine_that_died() -> None:
    clock = ManualClock()
    gather = ResponseCoalescer(lambda: 0.010, now_s=clock)
    gather.due([token(1, 10)])
    gather.due([token(1, 11, FinishReason.STOP)])
    assert gather.due([token(1, 12)]) == [TokenChunk(1, [12])], "a first token again"
    gather.due([token(1, 13)])
    gather.clear()
    assert gather.due([token(1, 14)]) == [TokenChunk(1, [14])]
