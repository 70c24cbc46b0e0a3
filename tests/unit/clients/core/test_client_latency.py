# SPDX-License-Identifier: Apache-2.0
"""The latency words on requests whose arithmetic can be done in the head: milliseconds, sent at 100."""

import pytest

from clients.latency import Arrival, MetricUndefined, RequestRecord, e2e_ms, itl_ms, tpot_ms, ttft_ms


def record(*arrivals: tuple[int, int]) -> RequestRecord:
    """Return the record of a request sent at 100; each arrival is (at ms, tokens)."""
    return RequestRecord(100_000_000, tuple(Arrival(at_ms * 1_000_000, tokens) for at_ms, tokens in arrivals))


def test_ttft_is_the_first_token_minus_send() -> None:
    assert ttft_ms(record((105, 1), (115, 1))) == 5


def test_e2e_is_the_last_chunk_minus_send() -> None:
    assert e2e_ms(record((105, 1), (115, 1))) == 15


def test_itl_is_every_gap_between_later_chunks() -> None:
    assert itl_ms(record((105, 1), (115, 1), (118, 4))) == [10, 3]


def test_tpot_is_the_rest_of_the_time_over_the_rest_of_the_tokens() -> None:
    # (e2e 25 - ttft 5) / (5 tokens - 1)
    assert tpot_ms(record((105, 1), (115, 2), (125, 2))) == 5


def test_a_chunk_without_tokens_is_neither_the_first_token_nor_a_gap() -> None:
    alive_first = record((102, 0), (105, 1), (110, 0), (115, 1))

    assert ttft_ms(alive_first) == 5
    assert itl_ms(alive_first) == [10]


def test_text_that_comes_after_the_last_token_is_still_waited_for() -> None:
    assert e2e_ms(record((105, 1), (115, 1), (120, 0))) == 20


def test_one_token_has_a_ttft_but_no_tpot_and_no_gap() -> None:
    single = record((105, 1))

    assert ttft_ms(single) == 5
    assert itl_ms(single) == []
    with pytest.raises(MetricUndefined, match="needs 2 output tokens, the request has 1"):
        tpot_ms(single)


def test_nothing_received_has_no_latency() -> None:
    for metric in (ttft_ms, e2e_ms, tpot_ms):
        with pytest.raises(MetricUndefined):
            metric(record())


def test_several_tokens_in_one_chunk_have_a_tpot_of_zero() -> None:
    assert tpot_ms(record((105, 4))) == 0
