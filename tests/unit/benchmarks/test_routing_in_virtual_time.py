# SPDX-License-Identifier: Apache-2.0
"""The study of routing: a gateway that sees the load of servers, on small runs and in the committed figures."""

from typing import Any

import pytest

from benchmarks.studies.routing_in_virtual_time import CASES, WAYS, Run
from documents.results import latest

pytestmark = pytest.mark.slow

OTHERS = "others at one server"


def run_of(case: str, way: str, seconds: float) -> dict[str, float]:
    return Run(CASES[case], WAYS[way], conversations_per_s=4.0, seed=5, read_s=0.5).measure(seconds)


def test_the_same_seed_gives_the_same_figures() -> None:
    one, other = (run_of("nobody else", "beginnings and load", 32.0) for _ in range(2))
    assert one == other


def test_a_gateway_that_sees_the_load_sends_less_to_where_others_ask_and_waits_less() -> None:
    blind, seeing = (run_of(OTHERS, way, 55.0) for way in ("beginnings", "beginnings and load"))
    assert seeing["share_of_the_first_server"] < blind["share_of_the_first_server"]
    assert seeing["ttft_p95_ms"] < blind["ttft_p95_ms"]


def test_the_committed_figures_hold_what_docs_say_of_them() -> None:
    found: dict[str, dict[str, Any]] = dict(latest("routing_in_virtual_time")["found"])
    assert list(found) == list(CASES)
    others = found[OTHERS]
    for blind, seeing in (("beginnings", "beginnings and load"), ("fewest of its own", "load")):
        assert others[seeing]["ttft_p95_ms"] < others[blind]["ttft_p95_ms"]
    # Where nobody else asks, nothing is lost: neither the cache nor the time.
    for case in ("nobody else", "nobody else, eight gateways"):
        blind, seeing = found[case]["beginnings"], found[case]["beginnings and load"]
        assert seeing["cached_share"] >= 0.95 * blind["cached_share"]
        assert seeing["ttft_p95_ms"] <= 1.1 * blind["ttft_p95_ms"]
