# SPDX-License-Identifier: Apache-2.0
"""The requests of the last minute: tokens of each second, times to the first text, errors; by hand."""

import pytest
from manual_clock import ManualClock

from clients.openai_api.answer_deltas import Usage
from gateway.live.recent_requests import WINDOW_S, RecentRequests


class Request:
    """A request whose tokens a test sets."""

    def __init__(self, model: str = "chat", release: int | None = None) -> None:
        self.model, self.release, self.tokens = model, release, 0

    @property
    def made(self) -> Usage:
        return Usage(3, self.tokens)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def recent(clock: ManualClock) -> RecentRequests:
    return RecentRequests(clock)


def test_tokens_count_in_the_second_in_which_they_come(recent: RecentRequests, clock: ManualClock) -> None:
    first, second, other = Request(), Request(), Request("code")
    recent.begin(first)
    for now_s, tokens in ((101, 10), (102, 30), (104, 40)):  # the third look is a second late
        clock.now_s, first.tokens = now_s, tokens
        recent.note_second()
    recent.end(first, error="", ttft_s=0.1)
    recent.begin(second)
    recent.begin(other)
    clock.now_s, second.tokens, other.tokens = 105, 7, 1
    recent.note_second()
    chat, code = recent.figures(["chat", "code"])
    assert chat.tokens_per_s == [10, 20, 5, 7]
    assert chat.running == [1, 1, 1, 1]
    assert (chat.running_requests, code.running_requests, recent.num_running) == (1, 1, 2)
    assert code.tokens_per_s == [0, 0, 0, 1]


def test_a_request_that_another_model_begins_anew_takes_no_tokens_back(
    recent: RecentRequests, clock: ManualClock
) -> None:
    request = Request()
    recent.begin(request)
    for now_s, tokens in ((101, 10), (102, 2), (103, 5)):
        clock.now_s, request.tokens = now_s, tokens
        recent.note_second()
    assert recent.figures(["chat"])[0].tokens_per_s == [10, 0, 3]


def test_what_has_ended_is_told_for_a_minute(recent: RecentRequests, clock: ManualClock) -> None:
    for number in range(1, 101):
        request = Request(release=1 + number % 2)
        recent.begin(request)
        recent.end(request, error="overloaded" if number > 98 else "", ttft_s=number / 100 if number <= 98 else None)
    [told] = recent.figures(["chat"])
    assert (told.ended_requests, told.errors, told.releases) == (100, {"overloaded": 2}, {1: 50, 2: 50})
    assert (told.ttft_p50_s, told.ttft_p99_s) == (0.49, 0.98)
    clock.now_s += WINDOW_S + 1
    [told] = recent.figures(["chat"])
    assert (told.ended_requests, told.errors, told.ttft_p50_s, told.ttft_p99_s) == (0, {}, None, None)


def test_no_more_than_a_minute_of_seconds_is_kept(recent: RecentRequests, clock: ManualClock) -> None:
    for _ in range(3 * WINDOW_S):
        clock.now_s += 1
        recent.note_second()
    assert len(recent.figures(["chat"])[0].tokens_per_s) == WINDOW_S
