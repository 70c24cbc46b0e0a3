# SPDX-License-Identifier: Apache-2.0
"""Three Tritons behind the real Envoy, all as the chart has them, under load.

The counts of the whole are in `test_chart_figures.py`.
"""

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from chart_here import needs_chart
from chart_replicas import PROJECT, Site
from envoy_here import needs_envoy
from streams_under_change import Streams, answers

pytestmark = [needs_chart, needs_envoy]
MODEL: dict[str, Any] = {
    "endpoints": ["ensemble"],
    "tokenizer": {"dir": str(PROJECT / "examples/demo_model/target")},
    "engine": {"provider": "simulated", "step_ms": 10.0, "num_kv_blocks": 4096, "seed": 1},
}
NUM_TOKENS, NUM_STREAMS = 60, 24
EJECTED_WITHIN_S = 5.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path, {"name": "chat", **MODEL})


def test_three_servers_are_replaced_one_by_one_and_no_stream_fails_or_is_cut(site: Site) -> None:
    with site.run(chat=3):
        old = list(site.replicas["chat"])
        by_release = {1: answers(site.url_of(old[0]), "ensemble", max_tokens=NUM_TOKENS)}
        with Streams(site.envoy.url, by_release, num_streams=NUM_STREAMS, max_tokens=NUM_TOKENS) as load:
            load.wait_for(1, NUM_STREAMS)
            for replica in old:
                site.grow("chat")  # a surge of one
                load.wait_for(1, NUM_STREAMS)
                assert replica.delete() == 0, replica.log_path.read_text()
            load.wait_for(1, NUM_STREAMS)
        assert load.wrong == []
        assert load.refused == []
        assert site.envoy.has_healthy("chat", 3)


def test_one_that_is_killed_is_ejected_within_five_seconds_and_costs_only_streams_that_had_begun(site: Site) -> None:
    with site.run(chat=3):
        killed = site.replicas["chat"][0]
        by_release = {1: answers(site.url_of(killed), "ensemble", max_tokens=NUM_TOKENS)}
        with Streams(site.envoy.url, by_release, num_streams=NUM_STREAMS, max_tokens=NUM_TOKENS) as load:
            load.wait_for(1, NUM_STREAMS)
            killed.signal(signal.SIGKILL)
            killed_s = time.monotonic()
            while not site.envoy.hosts("chat-grpc")[killed.host]:
                assert time.monotonic() - killed_s < EJECTED_WITHIN_S
                time.sleep(0.05)
            load.wait_for(1, 4 * NUM_STREAMS)
        cut, failed = cut_and_failed(load)
        assert len(cut) <= NUM_STREAMS  # nobody can go on with them
        assert all("reason=connection_lost" in text for text in cut), cut
        assert failed == []  # before its first response each was asked again elsewhere


def cut_and_failed(load: Streams) -> tuple[list[str], list[str]]:
    """Return streams that were ended in the middle, and requests that failed before.

    A first response without text is one, too: of the beginning of a character. Envoy resets a stream only after it.
    """
    begun = [text for text in load.refused if "RST_STREAM" in text]
    return load.wrong + begun, [text for text in load.refused if text not in begun]
