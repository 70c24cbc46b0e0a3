# SPDX-License-Identifier: Apache-2.0
"""The windows towards a client, against a client and a Triton that follow RFC 9113 to the byte."""

import random
from collections import defaultdict, deque

import pytest

from serving.frontend.grpc import http2_frames as h2
from serving.frontend.grpc.send_windows import SendWindows

FIRST = 65_535


class Ends:
    """A client and a Triton on either side; what each has sent and got, by stream."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.windows = SendWindows()
        self.client_left: dict[int, int] = {0: FIRST}
        self.triton_left: dict[int, int] = {0: FIRST}
        self.ungiven: dict[int, int] = defaultdict(int)  # what the client has got and not given back
        self.sent: dict[int, bytearray] = defaultdict(bytearray)
        self.got: dict[int, bytearray] = defaultdict(bytearray)
        self.first = FIRST
        self.settings: deque[int] = deque()
        self.ended: set[int] = set()
        self.closed: set[int] = set()  # by Triton, perhaps not to the client yet

    def begin(self, stream_id: int) -> None:
        self.windows.begin(stream_id)
        self.client_left[stream_id] = self.triton_left[stream_id] = self.first

    def own(self, stream_id: int, size: int) -> None:
        self.to_client(self.windows.own(stream_id, self._bytes(stream_id, size)))

    def of_triton(self, stream_id: int) -> None:
        most = min(self.triton_left[0], self.triton_left[stream_id], 40_000)
        if most <= 0:
            return
        size = self.random.randint(1, most)
        data = self._bytes(stream_id, size)
        self.triton_left[0] -= size
        self.triton_left[stream_id] -= size
        if self.windows.spend(stream_id, size):
            self.to_client(h2.make_frame(h2.DATA, 0, stream_id, data))
        else:
            self.to_client(self.windows.wait(stream_id, 0, data))

    def trailers(self, stream_id: int) -> None:
        self.closed.add(stream_id)
        frame = h2.make_frame(h2.HEADERS, h2.END_STREAM | h2.END_HEADERS, stream_id, b"t")
        if self.windows.is_waiting(stream_id):
            self.windows.wait_behind(stream_id, frame, is_last=True)
        else:
            assert not self.windows.end(stream_id)
            self.to_client(frame)

    def leave(self, stream_id: int) -> None:
        self.ended.add(stream_id)
        self.closed.add(stream_id)
        self.triton_left[0] += self.windows.end(stream_id)

    def give(self, stream_id: int, most: int = 50_000) -> None:
        size = min(self.ungiven[stream_id], self.random.randint(1, most))
        if not size or stream_id in self.ended:
            return
        self.ungiven[stream_id] -= size
        self.client_left[stream_id] += size
        of_triton, frames = self.windows.give(stream_id, size)
        self.triton_left[stream_id] += of_triton
        self.to_client(frames)

    def set_first(self, value: int) -> None:
        """Have the client change its setting; Triton acknowledges at once."""
        more, self.first = value - self.first, value
        for stream_id in self.client_left:
            if stream_id:
                self.client_left[stream_id] += more
                self.triton_left[stream_id] += more
        self.windows.set_first(value)
        self.windows.set_first(None)
        self.to_client(self.windows.acknowledge())
        self.to_client(self.windows.acknowledge())

    def to_client(self, frames: bytes) -> None:
        buffer = bytearray(frames)
        while (frame := h2.take_frame(buffer, max_bytes=2**24)) is not None:
            assert frame.stream_id not in self.ended, "a frame behind the end"
            if frame.kind == h2.DATA:
                size = len(frame.payload)
                assert size <= self.client_left[0], "more than the connection takes"
                assert size <= self.client_left[frame.stream_id], "more than the stream takes"
                for each in (0, frame.stream_id):
                    self.client_left[each] -= size
                    self.ungiven[each] += size
                self.got[frame.stream_id] += frame.payload
            if frame.flags & h2.END_STREAM:
                self.ended.add(frame.stream_id)
        assert not buffer

    def _bytes(self, stream_id: int, size: int) -> bytes:
        data = self.random.randbytes(size)
        self.sent[stream_id] += data
        return data


def act(ends: Ends, stream_id: int, left: set[int]) -> None:
    """Do something at random, on a stream or on the connection."""
    is_open, rarely = stream_id not in ends.closed, ends.random.random()
    match ends.random.randrange(12):
        case 0 | 1 | 2 | 3 if is_open:
            ends.own(stream_id, ends.random.choice([10, 200, 16_384, 90_000]))
        case 4 | 5 if is_open:
            ends.of_triton(stream_id)
        case 6 | 7:
            ends.give(0)
        case 8 | 9:
            ends.give(stream_id)
        case 10 if rarely < 0.1:
            ends.set_first(ends.random.choice([0, 1, 500, 1_000_000]))
        case 11 if rarely < 0.025 and is_open:
            ends.trailers(stream_id)
        case 11 if rarely < 0.05 and is_open:
            left.add(stream_id)
            ends.leave(stream_id)


@pytest.mark.parametrize("seed", range(150))
def test_a_client_gets_all_in_order_and_never_more_than_it_takes(seed: int) -> None:
    ends, left = Ends(seed), set[int]()
    if seed % 3 == 0:
        ends.set_first(ends.random.choice([0, 1, 500, 1_000_000]))
    ids = list(range(1, 13, 2))
    for stream_id in ids:
        ends.begin(stream_id)
    for _ in range(600):
        act(ends, ends.random.choice(ids), left)
    ends.set_first(1_000_000)
    for _ in range(2_000):
        for stream_id in (0, *ids):
            ends.give(stream_id, most=10**7)
    for stream_id in set(ids) - left:
        assert ends.got[stream_id] == ends.sent[stream_id]
    assert ends.client_left[0] == ends.triton_left[0] == FIRST - ends.ungiven[0]


def test_what_is_not_sent_any_more_is_not_waited_for() -> None:
    windows = SendWindows()
    windows.begin(1)
    assert len(windows.own(1, b"x" * 100_000)) > FIRST
    assert windows.end(1) == 0  # nothing of it was Triton's
    assert windows.give(0, FIRST) == (0, b"")  # what was sent is the relay's
    assert windows.give(0, 5) == (5, b"")
    windows.begin(3)
    assert windows.own(3, b"") == h2.make_frame(h2.DATA, 0, 3, b"")
    assert windows.own(5, b"of nobody") == b""
