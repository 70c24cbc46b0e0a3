# SPDX-License-Identifier: Apache-2.0
"""The estimate of a rollout: what the metrics tell of the traffic, and how long the gate then takes."""

import http.server
import math
import threading
from collections.abc import Callable, Iterator

import msgspec
import numpy as np
import pytest

from clients.rollout.estimate.seen_traffic import (
    HISTOGRAMS,
    SeenTraffic,
    Spread,
    Unknown,
    of_prometheus,
    of_server,
    spread_of,
)
from clients.rollout.estimate.verdict_estimate import estimate, lines
from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.state import Phase, Rollout
from clients.rollout.traffic import release_shares_now
from clients.rollout_gate.gate_spec import GateSpec
from serving.telemetry.request_metrics import _LENGTHS, FIRST_TOKEN_BUCKETS_S, TOKEN_BUCKETS_S

LABELS = 'model="tensorrt_llm",version="1"'
TRAFFIC = SeenTraffic(
    requests=180_000,
    seconds=86_400,
    spreads={"ttft": Spread(-2.0, 0.5), "tpot": Spread(-4.0, 0.25), "output_tokens": Spread(4.0, 0.7)},
    shares={"errors": 0.001, "cut": 0.1},
    source="the last day",
)


def plan(**changes: object) -> Plan:
    return msgspec.structs.replace(Plan(candidate=2, stable=1, release={}, salt=""), **changes)


def histogram(name: str, values: np.ndarray[tuple[int], np.dtype[np.float64]], bounds: tuple[float, ...]) -> list[str]:
    """Return a histogram's lines as Triton writes them."""
    counts = [(str(bound), int((values <= bound).sum())) for bound in bounds] + [("+Inf", values.size)]
    return [f"# TYPE {name} histogram", *(f'{name}_bucket{{{LABELS},le="{le}"}} {count}' for le, count in counts),
            f"{name}_sum{{{LABELS}}} {values.sum()}", f"{name}_count{{{LABELS}}} {values.size}"]  # fmt: skip


def page(*, requests: int = 4000, ttft_sd: float = 0.5) -> str:
    """Return a metrics page of log-normal times."""
    rng = np.random.default_rng(1)
    ends = {"stop": 0.909, "length": 0.09, "error": 0.001}
    return "\n".join(
        [
            *histogram(HISTOGRAMS["ttft"], rng.lognormal(-2, ttft_sd, requests), FIRST_TOKEN_BUCKETS_S),
            *histogram(HISTOGRAMS["tpot"], rng.lognormal(-4, 0.25, requests), TOKEN_BUCKETS_S),
            *histogram(HISTOGRAMS["output_tokens"], rng.lognormal(4, 0.7, requests), _LENGTHS),
            "# TYPE trireme_requests counter",
            *(
                f'trireme_requests_total{{{LABELS},finish_reason="{reason}"}} {share * requests}'
                for reason, share in ends.items()
            ),
            f'trireme_requests_total{{{LABELS},finish_reason="cancelled"}} 7777',
            'trireme_requests_total{model="other_tensorrt_llm",version="1",finish_reason="stop"} 8888',
            "",
        ]
    )


@pytest.fixture
def serve() -> Iterator[Callable[[str], str]]:
    """Yield a function that serves a text, and returns its URL."""
    servers = []

    def begin(text: str) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:  # the base's name
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_spread_is_that_of_the_values_in_the_buckets() -> None:
    values = np.random.default_rng(2).lognormal(-2.0, 0.6, 50_000)
    bounds = [*FIRST_TOKEN_BUCKETS_S, math.inf]
    found = spread_of({bound: float((values <= bound).sum()) for bound in bounds})
    assert found is not None
    assert found.mean == pytest.approx(-2.0, abs=0.01)
    assert found.sd == pytest.approx(0.6, abs=0.01)
    one_bucket = spread_of({0.1: 0.0, 0.2: 100.0, math.inf: 100.0})
    assert one_bucket is not None
    assert math.log(0.1) < one_bucket.mean < math.log(0.2)
    assert spread_of({0.1: 0.0, math.inf: 0.0}) is None


def test_the_page_of_the_server_tells_the_traffic(serve: Callable[[str], str]) -> None:
    found = of_server(serve(page()), prefix="", seconds=2000)
    assert found.per_s == pytest.approx(2.0)  # without requests whose clients left, and of this model
    assert {name: round(spread.sd, 2) for name, spread in found.spreads.items()} == {
        "ttft": pytest.approx(0.5, abs=0.02),
        "tpot": pytest.approx(0.25, abs=0.02),
        "output_tokens": pytest.approx(0.7, abs=0.02),
    }
    assert found.shares == {"errors": pytest.approx(0.001), "cut": pytest.approx(0.09 / 0.999)}


def test_of_several_models_each_has_its_own_traffic(serve: Callable[[str], str]) -> None:
    assert of_server(serve(page()), prefix="other_", seconds=1).requests == 8888


def test_one_replica_tells_the_traffic_of_all(serve: Callable[[str], str]) -> None:
    one, three = (of_server(serve(page()), prefix="", seconds=2000, num_replicas=number) for number in (1, 3))
    assert (three.requests, three.spreads) == (3 * one.requests, one.spreads)
    assert three.source == f"{one.source}, one of 3 replicas"


def test_a_busy_day_and_a_wide_spread_are_told(serve: Callable[[str], str]) -> None:
    narrow = estimate(plan(), of_server(serve(page(ttft_sd=0.3)), prefix="", seconds=2000))
    wide = estimate(plan(), of_server(serve(page(ttft_sd=1.2)), prefix="", seconds=2000))
    assert narrow.requests is not None
    assert wide.requests is not None
    assert wide.requests > 2 * narrow.requests
    assert wide.by == "ttft"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "0 requests in its 33 min so far are too few"),
        (page(requests=50), "50 requests in its 33 min so far are too few"),
        ("<html>", "holds no metrics"),
    ],
)
def test_a_page_that_tells_nothing_says_why(text: str, said: str, serve: Callable[[str], str]) -> None:
    with pytest.raises(Unknown, match=said):
        of_server(serve(text), prefix="", seconds=2000)


def test_what_does_not_answer_or_is_no_prometheus_says_so(serve: Callable[[str], str]) -> None:
    with pytest.raises(Unknown, match="cannot be read"):
        of_prometheus("http://127.0.0.1:9", prefix="")
    with pytest.raises(Unknown, match="does not answer as a Prometheus does"):
        of_prometheus(serve("{}"), prefix="")
    for url in ("no address", "localhost:9090"):
        with pytest.raises(Unknown, match=f"'{url}' is no URL, such as http://localhost:9090"):
            of_prometheus(url, prefix="")


def test_shares_before_the_last_take_their_step_and_the_last_takes_the_gate() -> None:
    found = estimate(plan(), TRAFFIC)
    assert [share.share for share in found.shares] == [0.01, 0.05, 0.25, 0.5]  # of all there is nothing to compare
    assert [share.requests for share in found.shares[:-1]] == [100, 100, 100]
    per_s = 180_000 / 86_400
    assert found.shares[0].seconds == pytest.approx(100 / (0.01 * per_s))
    assert found.shares[-1].seconds == pytest.approx(found.shares[-1].requests / (0.5 * per_s))
    assert found.requests is not None
    assert 500 < found.requests < 4000
    assert found.seconds == pytest.approx(sum(share.seconds for share in found.shares))


def test_twice_the_requests_a_second_take_no_longer() -> None:
    busy = SeenTraffic(360_000, 86_400, TRAFFIC.spreads, TRAFFIC.shares, "the last day")
    one, other = estimate(plan(), TRAFFIC), estimate(plan(), busy)
    assert one.seconds is not None
    assert other.seconds is not None
    assert other.seconds < 0.7 * one.seconds


def test_busy_traffic_is_not_held_before_the_time_that_the_gate_takes() -> None:
    every_s = 2000.0  # 4,000 requests of each arm are there in 4 s, and the gate judges after 80 s at the earliest
    busy = SeenTraffic(round(86_400 * every_s), 86_400, TRAFFIC.spreads, TRAFFIC.shares, "the last day")
    found = estimate(plan(), busy)
    assert found.requests is not None
    assert found.requests > GateSpec().max_requests
    assert found.seconds is not None
    assert 80 <= found.shares[-1].seconds <= 9 * GateSpec().fade_s == found.max_requests / (every_s / 2)
    assert not any("max-requests" in line for line in lines(plan(), found))


def test_what_would_be_faster_is_said_with_its_options() -> None:
    told = "\n".join(lines(plan(), estimate(plan(), TRAFFIC)))
    assert "at 2.08 requests a second, as in the last day (180,000 requests):" in told
    assert "faster: --steps 25,50,100, " in told
    assert "50 %: a pass after some " in told


def test_a_spread_that_no_rollout_can_tell_from_a_change_is_a_hold_that_is_told_before() -> None:
    wide = SeenTraffic(180_000, 86_400, {**TRAFFIC.spreads, "tpot": Spread(-4.0, 2.0)}, TRAFFIC.shares, "the last day")
    found = estimate(plan(), wide)
    assert (found.seconds, found.by) == (None, "tpot")
    told = "\n".join(lines(plan(), found))
    assert "no pass within 4,000 requests of each arm" in told
    assert "--max-requests " in told
    assert "effects: {tpot: 0.1}, twice as much as 0.05" in told
    allowed = plan(gate={"max_requests": found.requests})
    assert estimate(allowed, wide).seconds is not None


@pytest.mark.parametrize("last", [0.05, 0.9])
def test_both_arms_have_the_smaller_part_as_a_canary_compares_them(last: float) -> None:
    # As many requests of the stable release are compared as of the candidate: a twentieth, or a tenth, of all.
    rollout = Rollout(
        id=1, model="m", plan="", phase=Phase.RUNNING, step=0, phase_since=0.0, reason="", begun_at=0.0, ended_at=None
    )
    part = next(each.upto for each in release_shares_now(rollout, plan(shares=(last, 1.0))) if each.arm == "candidate")
    found = estimate(plan(shares=(last, 1.0)), TRAFFIC)
    assert found.requests is not None
    assert found.shares[-1].seconds == pytest.approx(found.shares[-1].requests / (part * TRAFFIC.per_s))
    half = estimate(plan(shares=(0.5, 1.0)), TRAFFIC)
    assert half.requests is not None
    assert found.requests <= half.requests, "it has more time for each request"


def test_a_shadow_judges_its_last_share_too() -> None:
    found = estimate(plan(mode=Mode.SHADOW, shares=(0.1, 1.0)), TRAFFIC)
    assert [share.share for share in found.shares] == [0.1, 1.0]


def test_the_document_has_what_the_sentences_have() -> None:
    found = estimate(plan(), TRAFFIC).document()
    assert found["requests_per_s"] == pytest.approx(2.083, abs=0.001)
    assert found["shares"][0] == {"share": 0.01, "requests": 100, "seconds": pytest.approx(4800)}
    assert found["requests_until_fail"]["ttft"] > 0
