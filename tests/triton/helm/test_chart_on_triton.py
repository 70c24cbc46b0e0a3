# SPDX-License-Identifier: Apache-2.0
"""Three Tritons behind the real Envoy, all as the chart has them, under load.

The counts of the whole are in `test_chart_figures.py`.
"""

import signal
import time
from collections.abc import Iterator
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield three servers and Envoy, for both tests: three serve after the first."""
    with Site(tmp_path_factory.mktemp("site"), {"name": "chat", **MODEL}).run(chat=3) as running:
        yield running


def load_on(site: Site) -> Streams:
    replica = site.replicas["chat"][-1]
    by_release = {1: answers(site.url_of(replica), "ensemble", max_tokens=NUM_TOKENS)}
    return Streams(site.envoy.url, by_release, num_streams=NUM_STREAMS, max_tokens=NUM_TOKENS)


def test_a_server_is_replaced_and_no_stream_fails_or_is_cut(site: Site) -> None:
    replica = site.replicas["chat"][0]
    with load_on(site) as load:
        load.wait_for(1, NUM_STREAMS)
        site.grow("chat")  # a surge of one
        load.wait_for(1, NUM_STREAMS)
        assert replica.delete() == 0, replica.log_path.read_text()
        load.wait_for(1, NUM_STREAMS)
    assert load.wrong == []
    assert load.refused == []
    assert site.envoy.has_healthy("chat", 3)


def test_one_that_is_killed_is_ejected_within_five_seconds_and_costs_only_streams_that_had_begun(site: Site) -> None:
    killed = site.replicas["chat"][1]
    with load_on(site) as load:
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
