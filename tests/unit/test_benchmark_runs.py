# SPDX-License-Identifier: Apache-2.0
"""What a benchmark makes of arrivals, and of the bytes of a stream."""

import pytest

from benchmarks.http2_streams import Received
from benchmarks.workload import Run


def test_a_runs_figures_are_those_of_its_arrivals() -> None:
    # Two requests, sent at 0: responses at 0.10, 0.15, 0.25 and at 0.20, 0.50; together ten tokens.
    run = Run.of([[0.10, 0.15, 0.25], [0.20, 0.50]], num_tokens=10, client_cpu_s=0.001)
    assert run.tokens_per_s == pytest.approx(20)
    assert run.ttft_ms == pytest.approx(150)
    assert run.itl_p50_ms == pytest.approx(100), "of the gaps 50, 100 and 300"
    assert run.tokens_per_response == pytest.approx(2)
    assert run.client_cpu_us == pytest.approx(200)


def test_messages_are_cut_out_of_the_bytes_of_a_stream_and_have_the_time_of_their_last_byte() -> None:
    def framed(message: bytes) -> bytes:
        return b"\0" + len(message).to_bytes(4, "big") + message

    data = framed(b"first") + framed(b"") + framed(b"third")
    received = Received([(1.0, data[:7]), (2.0, data[7:16]), (3.0, data[16:])])
    assert received.messages() == [(2.0, b"first"), (2.0, b""), (3.0, b"third")]
    assert Received([(1.0, data[:7])]).messages() == []
