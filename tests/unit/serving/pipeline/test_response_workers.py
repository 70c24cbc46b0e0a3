# SPDX-License-Identifier: Apache-2.0
"""Threads that reply: a stream's order is kept, streams do not wait for each other, and what waits leaves in time."""

import threading
import time
from collections.abc import Callable

import pytest

from serving.engines.seam.base import FinishReason, TokenChunk
from serving.pipeline.response_workers import NUM_WORKERS, ResponseWorkers

WAIT_S = 10.0


class Replied:
    """The replies by stream; `hold` keeps the replies of one stream from getting anywhere."""

    def __init__(self) -> None:
        self.chunks: dict[int, list[int]] = {}
        self.held_key: int | None = None
        self.hold = threading.Event()
        self._changed = threading.Condition()

    def __call__(self, chunk: TokenChunk) -> None:
        if chunk.key == self.held_key:
            assert self.hold.wait(WAIT_S)
        with self._changed:
            self.chunks.setdefault(chunk.key, []).extend(chunk.token_ids)
            self._changed.notify_all()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(is_so, WAIT_S), self.chunks


@pytest.fixture
def replied() -> Replied:
    return Replied()


def test_the_tokens_of_each_stream_are_replied_in_order_whatever_the_others_do(replied: Replied) -> None:
    lanes = ResponseWorkers(replied, delay_s=lambda: 0.0)
    for token_id in range(200):
        lanes.put([TokenChunk(key, [token_id]) for key in range(16)])
    replied.wait_until(lambda: all(len(replied.chunks.get(key, ())) == 200 for key in range(16)))
    assert all(replied.chunks[key] == list(range(200)) for key in range(16))
    lanes.close()


def test_a_reply_that_takes_long_holds_up_its_own_lane_only(replied: Replied) -> None:
    lanes = ResponseWorkers(replied, delay_s=lambda: 0.0)
    replied.held_key = 1
    lanes.put([TokenChunk(1, [10])])
    lanes.put([TokenChunk(key, [20]) for key in range(1, NUM_WORKERS + 1)])
    replied.wait_until(lambda: len(replied.chunks) == NUM_WORKERS - 1)
    assert 1 not in replied.chunks
    replied.hold.set()
    replied.wait_until(lambda: replied.chunks.get(1) == [10, 20])
    lanes.close()


def test_tokens_that_wait_leave_in_time_while_the_engine_says_nothing(replied: Replied) -> None:
    lanes = ResponseWorkers(replied, delay_s=lambda: 0.3)
    lanes.put([TokenChunk(1, [10])])
    replied.wait_until(lambda: 1 in replied.chunks)
    lanes.put([TokenChunk(1, [11])])
    lanes.put([TokenChunk(1, [12])])
    time.sleep(0.005)
    assert replied.chunks[1] == [10]
    replied.wait_until(lambda: replied.chunks[1] == [10, 11, 12])
    lanes.put([TokenChunk(1, [13], FinishReason.STOP)])
    replied.wait_until(lambda: replied.chunks[1][-1] == 13)
    lanes.close()


def test_what_waits_is_forgotten_when_the_engine_is_gone(replied: Replied) -> None:
    lanes = ResponseWorkers(replied, delay_s=lambda: 0.3)
    lanes.put([TokenChunk(1, [10])])
    replied.wait_until(lambda: 1 in replied.chunks)
    lanes.put([TokenChunk(1, [11])])
    lanes.clear()
    lanes.put([TokenChunk(1, [12])])
    replied.wait_until(lambda: 12 in replied.chunks[1])
    assert replied.chunks[1] == [10, 12]
    lanes.close()


def test_a_reply_that_fails_does_not_end_its_lane(caplog: pytest.LogCaptureFixture) -> None:
    later = threading.Event()

    def reply(chunk: TokenChunk) -> None:
        if chunk.token_ids == [10]:
            raise ValueError("broken")
        later.set()

    lanes = ResponseWorkers(reply, delay_s=lambda: 0.0)
    lanes.put([TokenChunk(1, [10])])
    lanes.put([TokenChunk(1 + NUM_WORKERS, [11])])
    assert later.wait(WAIT_S)
    assert "a chunk could not be replied" in caplog.text
    lanes.close()


def test_a_refusal_does_not_wait_for_the_tokens_of_others_and_an_error_does_for_its_own(replied: Replied) -> None:
    lanes = ResponseWorkers(replied, delay_s=lambda: 0.0)
    replied.held_key = 1
    same_lane = 1 + NUM_WORKERS
    lanes.put([TokenChunk(1, [10]), TokenChunk(same_lane, [20])])
    refused = same_lane + NUM_WORKERS
    lanes.put(
        [TokenChunk(same_lane, [], error="[INTERNAL] broken"), TokenChunk(refused, [], error="[UNAVAILABLE] full")]
    )
    replied.wait_until(lambda: refused in replied.chunks)
    assert same_lane not in replied.chunks, "its token is before its error"
    replied.hold.set()
    replied.wait_until(lambda: replied.chunks.get(same_lane) == [20])
    lanes.close()


def test_direct_streams_have_a_thread_of_their_own_but_for_their_last_chunk() -> None:
    threads: dict[int, list[tuple[int, int]]] = {}
    done = threading.Event()

    def reply(chunk: TokenChunk) -> None:
        threads.setdefault(chunk.key, []).append((chunk.token_ids[-1], threading.get_ident()))
        if all(len(found) == 4 for found in threads.values()) and len(threads) == 8:
            done.set()

    flushed = list[int]()
    workers = ResponseWorkers(
        reply,
        delay_s=lambda: 0.0,
        is_direct=lambda key: key % 2 == 0,
        flush=lambda: flushed.append(threading.get_ident()),
    )
    for token_id in range(3):
        workers.put([TokenChunk(key, [token_id]) for key in range(8)])
        wait_for(lambda: sum(map(len, list(threads.values()))) == 8 * (token_id + 1))  # noqa: B023
    workers.put([TokenChunk(key, [3], FinishReason.LENGTH) for key in range(8)])
    assert done.wait(WAIT_S)
    assert all([token for token, _ in found] == [0, 1, 2, 3] for found in threads.values())
    [direct] = {thread for key in (0, 2, 4, 6) for _, thread in threads[key][:3]}
    assert direct in flushed
    for key, found in threads.items():
        assert (direct in {thread for _, thread in found[:3]}) == (key % 2 == 0)
        assert found[3][1] != direct
    workers.close()


def test_a_direct_answer_of_one_chunk_goes_to_triton_at_once() -> None:
    threads: dict[int, int] = {}

    def reply(chunk: TokenChunk) -> None:
        threads[chunk.key] = threading.get_ident()

    workers = ResponseWorkers(reply, delay_s=lambda: 0.0, is_direct=lambda key: key < 8)
    workers.put([TokenChunk(key, [1], FinishReason.LENGTH) for key in range(8)])
    workers.put([TokenChunk(key, [1], FinishReason.LENGTH) for key in range(8, 16)])
    wait_for(lambda: len(threads) == 16)
    assert {threads[key] for key in range(8)} == {threads[key] for key in range(8, 16)}
    workers.close()


def test_the_last_chunk_of_a_direct_stream_takes_along_what_waits(replied: Replied) -> None:
    workers = ResponseWorkers(replied, delay_s=lambda: 30.0, is_direct=lambda _: True)
    for token_id in range(5):
        workers.put([TokenChunk(1, [token_id], FinishReason.LENGTH if token_id == 4 else None)])
    replied.wait_until(lambda: len(replied.chunks.get(1, ())) == 5)
    assert replied.chunks[1] == list(range(5))
    workers.close()


def wait_for(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.002)
