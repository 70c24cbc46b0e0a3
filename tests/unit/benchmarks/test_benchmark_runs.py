# SPDX-License-Identifier: Apache-2.0
"""A benchmark's reading of arrivals, and of the bytes of a stream; and the ports that its server gets."""

import socket
from pathlib import Path

import pytest

from benchmarks.first_request import Row, Start
from benchmarks.support.http2_streams import Received
from benchmarks.support.report import median_with_interval, ratio_of_quantiles
from benchmarks.support.workload import Run
from trireme.base import free_ports


def test_ports_are_free_and_none_that_an_outgoing_connection_gets(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    outgoing = tmp_path / "range"
    outgoing.write_text("10003\t65533\n")
    monkeypatch.setattr(free_ports, "_OUTGOING", outgoing)
    monkeypatch.setattr(free_ports, "_is_free", lambda port: port != 65_534)
    assert sorted(free_ports.free_ports(4)) == [10_000, 10_001, 10_002, 65_535]
    outgoing.write_text("1024\t65535\n")
    assert len(set(free_ports.free_ports(3))) == 3, "no port is left out where all would be"


def test_a_port_that_somebody_listens_on_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not free_ports._is_free(taken.getsockname()[1])


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


def test_the_first_request_is_held_against_the_later_ones_of_its_own_server() -> None:
    starts = [
        Start(first_ms=12.0, same_length_ms=6.0, other_lengths_ms=8.0),
        Start(first_ms=30.0, same_length_ms=20.0, other_lengths_ms=30.0),
        Start(first_ms=10.0, same_length_ms=10.0, other_lengths_ms=20.0),
    ]
    ratios = Row(is_warmed_up=True, entry="ensemble", is_streaming=True, starts=starts).ratios()
    assert (ratios["same_length"]["median"], ratios["other_lengths"]["median"]) == (1.5, 1.0)


def test_a_ratio_of_quantiles_is_of_all_values_and_its_interval_of_whole_windows() -> None:
    # Medians of the pooled values: 40 over 20; each window alone has one of 20 to 60 over 10 to 30.
    found = ratio_of_quantiles([[20.0, 20.0], [40.0], [60.0, 60.0]], [[10.0, 10.0], [20.0], [30.0, 30.0]], 0.5)
    assert found["ratio"] == 2
    assert 20 / 30 <= found["low"] < 2 < found["high"] <= 60 / 10
    assert ratio_of_quantiles([[3.0]] * 4, [[2.0]] * 4, 0.99) == {"ratio": 1.5, "low": 1.5, "high": 1.5}


def test_a_median_has_the_interval_of_its_draws() -> None:
    found = median_with_interval([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found == {"median": 3, "low": 1, "high": 100}  # three of five are 1 in 5.8 % of the draws
