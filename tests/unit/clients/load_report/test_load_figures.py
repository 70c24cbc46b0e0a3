# SPDX-License-Identifier: Apache-2.0
"""The figures of records with known times, which can be worked out by hand."""

import random

import numpy as np
import pytest
from load_records import record, run, steady
from scipy.stats import t

from clients.load_report.comparison import Ratio, compare
from clients.load_report.document import document_of
from clients.load_report.knee import knee_of
from clients.load_report.latency_percentiles import PERCENTILES, Interval, spread_of, with_draws
from clients.load_report.rates import rate_of
from clients.load_report.run_figures import figures_of
from clients.load_report.server_figures import engine_model, server_figures
from clients.load_report.slo import Target, is_met, parse_targets
from clients.load_report.steady_state import Window, steady_window
from clients.load_run.cpu_sample import CpuSample
from clients.load_run.load_record import Unended
from clients.load_run.run_folder import Run
from clients.load_run.server_samples import ServerSample
from trireme.base.errors import RequestError, SpecError
from trireme.base.sample_statistics import Floats, block_bootstrap


def test_every_latency_by_hand() -> None:
    # Due at 100, chunks at 150 (1 token), 170 (2 tokens), 200 (1 token), and text without a token at 210.
    figures = figures_of(run([record(100, [(150, 1), (170, 2), (200, 1), (210, 0)])]))
    found = {name: spread.mean for name, spread in figures.latencies.items()}
    assert found == pytest.approx({"ttft": 50, "itl": 25, "tpot": (110 - 50) / 3, "e2e": 110})
    assert figures.latencies["itl"].count == 2


def test_what_has_no_token_one_token_or_an_error_is_in_no_latency_that_it_does_not_have() -> None:
    figures = figures_of(
        run(
            [
                record(0, [(40, 0)]),  # nothing but an end
                record(0, [(50, 1)]),
                record(0, [(60, 1), (70, 1)]),
                record(0, [(80, 1)], end="UNAVAILABLE"),
                record(0, end="DEADLINE"),
                record(0, [(60, 1), (90, 2)], num_attempts=3),
            ]
        )
    )
    assert figures.ends == {"done": 4, "UNAVAILABLE": 1, "DEADLINE": 1}
    assert figures.error_share == pytest.approx(2 / 6)
    assert figures.refused_share == pytest.approx(1 / 6)
    assert (figures.num_empty, figures.num_retried) == (1, 1)
    assert {name: spread.count for name, spread in figures.latencies.items()} == {
        "ttft": 3,
        "itl": 2,
        "tpot": 2,
        "e2e": 4,
    }
    assert figures.latencies["ttft"].mean == pytest.approx((50 + 60 + 60) / 3)
    assert figures.latencies["tpot"].mean == pytest.approx((10 + 15) / 2)


@pytest.mark.parametrize(
    ("reason", "is_refusal"),
    [("queue_full", True), ("stopping", True), (None, True)]
    + [(reason, False) for reason in ("connection_lost", "unreachable", "silent")],
)
def test_refused_is_what_the_server_does_not_take_and_not_what_nobody_answered(
    reason: str | None, is_refusal: bool
) -> None:
    figures = figures_of(run([record(0, [(40, 1)]), record(0, end="UNAVAILABLE", reason=reason)]))
    assert figures.ends == {"done": 1, "UNAVAILABLE": 1}
    assert figures.error_share == 0.5
    assert figures.refused_share == (0.5 if is_refusal else 0)


def test_throughput_is_of_the_measured_part() -> None:
    # One request every 10 ms, of five tokens: 100 requests and 500 tokens a second.
    figures = figures_of(run(steady(400)))
    assert figures.window.is_steady
    assert 0 < figures.window.start_ns < figures.window.end_ns
    assert figures.requests.per_s == pytest.approx(100, rel=0.01)
    assert figures.output_tokens.per_s == pytest.approx(500, rel=0.01)
    assert figures.requests.interval is not None
    assert figures.requests.interval.low <= 100.5
    assert figures.requests.interval.high >= 99.5


@pytest.mark.parametrize("count", [88, 91, 100, 103])
@pytest.mark.parametrize("jitter_ms", [0.0, 4.0, 60.0])
def test_a_closed_loop_of_waves_obeys_littles_law(count: int, jitter_ms: float) -> None:
    # 8 users, each with the next request when theirs is over: 100 ms to the first of 32 tokens, then one every 6 ms.
    rng, free_ms, records = random.Random(count), [0.0] * 8, []
    for _ in range(count):
        due_ms = min(free_ms)
        ttft_ms = 100 + rng.uniform(0, jitter_ms)
        free_ms[free_ms.index(due_ms)] = due_ms + ttft_ms + 31 * 6
        records.append(record(due_ms, [(due_ms + ttft_ms + 6 * token, 1) for token in range(32)]))
    figures = figures_of(run(records, num_users=8))
    e2e_s = figures.latencies["e2e"].mean / 1e3
    assert figures.requests.per_s == pytest.approx(8 / e2e_s, rel=0.01)
    assert figures.output_tokens.per_s == pytest.approx(32 * figures.requests.per_s, rel=1e-9)


def test_a_request_is_counted_where_its_tokens_came_and_without_any_where_it_ended() -> None:
    few = [record(0, [(100, 1), (200, 3)]), record(0, end_ns=400_000_000)]
    figures = figures_of(run(few))  # the whole run, 400 ms
    assert figures.requests.per_s == pytest.approx(2 / 0.4)
    assert figures.output_tokens.per_s == pytest.approx(4 / 0.4)


def test_percentiles_are_numpys() -> None:
    rng = random.Random(1)
    values = [[rng.expovariate(1.0) for _ in range(rng.randrange(1, 9))] for _ in range(300)]
    spread = spread_of(values)
    assert spread is not None
    pooled = [value for one in values for value in one]
    for name, value in spread.percentiles.items():
        assert value == pytest.approx(np.percentile(pooled, float(name)), rel=1e-9)
    assert spread.mean == pytest.approx(np.mean(pooled))


def test_the_figures_of_a_draw_are_those_of_its_pooled_blocks() -> None:
    rng = random.Random(1)
    values = [[rng.expovariate(1.0) for _ in range(rng.randrange(1, 9))] for _ in range(300)]
    blocks = [np.concatenate(values[first : first + 15]) for first in range(0, 300, 15)]

    def figures(pooled: Floats) -> list[float]:
        return [pooled.mean(), *np.percentile(pooled, PERCENTILES)]

    all_of_them, drawn = with_draws(values, seed=3)
    assert all_of_them == pytest.approx(np.array(figures(np.concatenate(blocks))), rel=1e-9)
    assert drawn == pytest.approx(block_bootstrap(figures, blocks, num_resamples=400, seed=3), rel=1e-9)


def test_an_interval_holds_the_truth_about_as_often_as_it_says_though_neighbours_are_alike() -> None:
    rng, held = random.Random(2), 0
    for _ in range(100):
        level, values = 0.0, []
        for _ in range(600):
            level = 0.7 * level + rng.gauss(0, 1)  # its mean is 0
            values.append([100 + level])
        spread = spread_of(values)
        assert spread is not None
        held += spread.intervals["mean"].low <= 100 <= spread.intervals["mean"].high
    assert 84 <= held <= 96, "two standard deviations about 90"


def poisson_run(seed: int, *, seconds: float) -> Run:
    """Return a run with two requests a second, each with ten tokens over 5 s: 20 tokens a second."""
    rng, at_ms, records = random.Random(seed), 0.0, []
    while (at_ms := at_ms + rng.expovariate(1 / 500)) < 1000 * seconds:
        records.append(record(at_ms, [(at_ms + 500 * token, 1) for token in range(1, 11)]))
    return run(records)


def rate_interval(of_run: Run) -> tuple[Window, Interval | None]:
    window = steady_window(of_run.records, num_users=None)
    done = [one for one in of_run.records if window.holds(one.due_ns)]
    counts = [one for each in of_run.records for one in zip(each.times_ns, each.tokens, strict=True)]
    return window, rate_of(counts, window, done).interval


def test_the_interval_of_a_rate_holds_the_truth_as_often_as_it_says_though_a_request_spans_many_tokens() -> None:
    # With stretches shorter than a request, twentieths of the run, it holds it in 80 of 100.
    intervals = [rate_interval(poisson_run(seed, seconds=70))[1] for seed in range(200)]
    found = [interval for interval in intervals if interval is not None]
    assert len(found) >= 180, "a few have a short measured part"
    assert sum(interval.low <= 20 <= interval.high for interval in found) >= 0.88 * len(found)


def test_a_rate_of_few_requests_or_of_a_window_not_much_longer_than_one_has_no_interval() -> None:
    window, interval = rate_interval(poisson_run(1, seconds=40))
    assert 25 < window.seconds < 50
    assert interval is None
    few = figures_of(run(steady(39)))
    assert (few.requests.interval, few.output_tokens.interval) == (None, None)
    many = figures_of(run(steady(200)))
    assert many.requests.interval is not None
    assert many.output_tokens.interval is not None


def test_the_interval_of_a_rate_is_students() -> None:
    # 100 requests/s of one token for 20 s, the second half of each second twice as many tokens: a mean of 150/s.
    records = [record(n * 10, [(n * 10 + 5, 1 + (n // 50) % 2)]) for n in range(2000)]
    window = Window(start_ns=0, end_ns=20 * 10**9, is_steady=True, why="")
    done = [record(0, [(2000, 1)])] * 40  # of 2 s: stretches of 4 s
    counts = [(each.times_ns[0], each.tokens[0] + (each.times_ns[0] > 16 * 10**9)) for each in records]
    found = rate_of(counts, window, done)
    error = np.std([150, 150, 150, 150, 250], ddof=1) / 5**0.5
    assert found.interval is not None
    assert found.per_s == pytest.approx(170)
    assert found.interval.high - found.per_s == pytest.approx(t.ppf(0.975, 4) * error)


def test_few_requests_have_no_interval() -> None:
    spread = spread_of([[1.0]] * 39)
    assert spread is not None
    assert spread.intervals == {}
    assert spread_of([]) is None


def test_the_beginning_is_left_out_while_the_batch_fills() -> None:
    # Each takes a second, so for the first second more and more are in flight.
    records = [record(number * 10, [(number * 10 + 1000, 1)]) for number in range(800)]
    window = steady_window(records, num_users=None)
    assert window.is_steady
    assert 0.9e9 < window.start_ns < 2.5e9
    assert window.end_ns == 7990 * 1_000_000 + 1


def test_a_queue_that_only_grows_is_not_steady() -> None:
    # Each takes 1 % of the time that has passed longer than the one before.
    records = [record(number * 10, [(number * 10 + 100 + number * 8, 1)]) for number in range(500)]
    window = steady_window(records, num_users=None)
    assert not window.is_steady
    assert "rose" in window.why


def test_an_ordinary_waver_of_poisson_arrivals_is_steady() -> None:
    unsteady = 0
    for seed in range(60):
        rng, at, records = random.Random(seed), 0.0, []
        while at < 20_000:
            at += rng.expovariate(1 / 100)
            records.append(record(at, [(at + rng.uniform(300, 700), 1)]))
        unsteady += not steady_window(records, num_users=None).is_steady
    assert unsteady <= 3


def test_a_closed_loop_ends_where_its_first_user_has_nothing_left() -> None:
    records = [record(wave * 100 + user, [(wave * 100 + 100 + user, 1)]) for wave in range(20) for user in range(4)]
    window = steady_window(records, num_users=4)
    assert window.end_ns == 2000 * 1_000_000
    assert window.start_ns >= 100 * 1_000_000


@pytest.mark.parametrize("num_rounds", [1.0, 2.0, 2.5])
def test_a_closed_loop_of_less_than_three_rounds_is_measured_whole_and_not_called_steady(num_rounds: float) -> None:
    # 32 users, 100 ms each: in the first wave nothing has ended yet, and in the last one nothing begins any more.
    count = round(32 * num_rounds)
    records = [record(n // 32 * 100, [(n // 32 * 100 + 60, 1), (n // 32 * 100 + 100, 1)]) for n in range(count)]
    figures = figures_of(run(records, num_users=32), targets=parse_targets("ttft=70", of_percentiles=False))
    assert figures.num_requests == count
    assert figures.latencies["e2e"].mean == pytest.approx(100)
    assert figures.goodput_share == 1
    assert not figures.window.is_steady
    assert f"{count} requests, of 32 users, are less than 3 rounds" in figures.window.why


def test_three_rounds_of_a_closed_loop_have_a_steady_part() -> None:
    records = [record(n // 32 * 100, [(n // 32 * 100 + 60, 1), (n // 32 * 100 + 100, 1)]) for n in range(96)]
    figures = figures_of(run(records, num_users=32))
    assert figures.window.is_steady
    assert figures.num_requests == 64  # without the first round
    assert figures.requests.per_s == pytest.approx(320)


def test_of_a_stall_that_was_stopped_nothing_is_measured_and_the_report_says_what_ran() -> None:
    # 10 requests/s of 50 ms each; from 20 s on every other one is stuck, and at 60 s somebody stops it.
    records = [record(n * 100, [(n * 100 + 50, 1)]) for n in range(600) if n < 200 or n % 2]
    stopped = run(records, unended=Unended(count=200, since_ns=20 * 10**9, stopped_ns=60 * 10**9))
    figures = figures_of(stopped)
    assert figures.window.end_ns <= 20 * 10**9
    assert figures.requests.per_s == pytest.approx(10, rel=0.02)
    assert figures_of(run(records)).window.end_ns > 59 * 10**9
    said = "200 requests, due from 20.0 s on, had not ended when the load was stopped at 60.0 s: they are in no figure"
    [part] = document_of([stopped], title="", targets=(), num_gpus=None).runs
    assert any(said in warning for warning in part.warnings)


def test_users_who_go_on_beside_a_stuck_one_are_measured_up_to_where_it_was_due() -> None:
    # 8 users, 100 ms each; one of them is stuck from its 61st request on, at 6 s.
    records = [record(n * 100, [(n * 100 + 100, 1)]) for n in range(200) for user in range(8) if user or n < 60]
    since_ns = 6 * 10**9
    figures = figures_of(run(records, num_users=8, unended=Unended(count=1, since_ns=since_ns, stopped_ns=20 * 10**9)))
    assert figures.window.end_ns <= since_ns
    assert figures.requests.per_s == pytest.approx(80)
    early = run(records, num_users=8, unended=Unended(count=1, since_ns=10**8, stopped_ns=20 * 10**9))
    assert "the whole run: 8 requests due before 0.1 s are too few" in figures_of(early).window.why


def test_the_clients_cpu_and_lag_make_a_run_client_bound() -> None:
    late = [
        record(number * 10, [(number * 10 + 50, 1)], sent_ns=(number * 10 + 30) * 1_000_000) for number in range(100)
    ]
    cpu = [[CpuSample(at * 1_000_000_000, 0.9 * at) for at in range(3)], [CpuSample(0, 0.0), CpuSample(2 * 10**9, 0.1)]]
    client = figures_of(run(late, cpu=cpu)).client
    assert client.cpu_share == pytest.approx(0.9)
    assert client.lag_p99_ms == pytest.approx(30)
    assert "90% of a core" in client.why_bound
    assert "30 ms late" in client.why_bound
    assert figures_of(run(steady())).client.why_bound == ""


def test_goodput_counts_what_met_every_target() -> None:
    targets = parse_targets("ttft=55, tpot=0.012s", of_percentiles=False)
    records = steady(200) + [record(number * 10, [(number * 10 + 60, 1)]) for number in range(200)]
    figures = figures_of(run(sorted(records, key=lambda one: one.due_ns)), targets=targets)
    assert figures.goodput_share == pytest.approx(0.5, abs=0.02)
    assert figures.goodput is not None
    assert figures.goodput.per_s == pytest.approx(100, rel=0.03)
    assert is_met(record(0, [(50, 1)]), targets)  # one token has no TPOT to miss
    assert not is_met(record(0, [(50, 1)], end="DEADLINE"), targets)


@pytest.mark.parametrize(
    ("text", "of_percentiles"),
    [
        ("ttft", True),
        ("ttft_p99=500", False),
        ("ttft=500", True),
        ("itl_p99=5", True),
        ("ttft_p100=5", True),
        ("ttft=1.2.3", False),
        ("ttft=.", False),
        ("ttft_p9.9.9=5", True),
        ("ttft_p99=0", True),
    ],
)
def test_targets_that_are_not_targets(text: str, of_percentiles: bool) -> None:
    with pytest.raises(RequestError, match="write it like") as caught:
        parse_targets(text, of_percentiles=of_percentiles)
    assert caught.value.facts["field"] == "slo"


def test_targets_are_read_with_their_units() -> None:
    assert parse_targets("ttft_p99=0.5s,tpot_p95=50ms", of_percentiles=True) == (
        Target(metric="ttft", limit_ms=500, percentile=99),
        Target(metric="tpot", limit_ms=50, percentile=95),
    )


def test_a_run_against_another_has_the_ratio_and_its_interval() -> None:
    rng = random.Random(3)

    def noisy(factor: float, name: str) -> object:
        return run(
            [
                record(number * 10, [(number * 10 + factor * rng.uniform(40, 60), 1), (number * 10 + 200 * factor, 4)])
                for number in range(600)
            ],
            name=name,
        )

    base, slower = noisy(1.0, "base"), noisy(1.2, "slower")
    ratios = {
        one.figure: one
        for one in compare(slower, figures_of(slower), base, figures_of(base))  # type: ignore[arg-type]
    }
    assert ratios["TTFT p50"].value == pytest.approx(1.2, rel=0.05)
    assert ratios["TTFT p50"].is_different
    assert ratios["E2E p50"].value == pytest.approx(1.2, rel=0.01)
    assert not ratios["requests/s"].is_different


def test_a_figure_that_is_0_in_the_first_run_has_no_ratio() -> None:
    def paired(share: int, name: str) -> Run:
        """Return a run whose tokens come by twos, each two in one TCP segment.

        One request in `share` has its two tokens 10 ms apart.
        """
        return run(
            [
                record(n * 10, [(n * 10 + 20 + 10 * token * (not n % share), 1) for token in range(2)])
                for n in range(600)
            ],
            name=name,
        )

    def ratios(other: Run, base: Run) -> dict[str, Ratio]:
        return {one.figure: one for one in compare(other, figures_of(other), base, figures_of(base))}

    apart, some, together = paired(1, "apart"), paired(50, "some"), paired(10**9, "together")
    assert "ITL p99" in ratios(some, apart)
    assert {"ITL p50", "ITL p99"}.isdisjoint(ratios(apart, together))
    found = ratios(apart, some)  # 2 % of its gaps are 10 ms: p99 is, but not in each draw
    assert "ITL p50" not in found
    assert (found["ITL p99"].value, found["ITL p99"].interval) == (1, None)


def test_the_knee_is_where_throughput_over_latency_is_greatest() -> None:
    # 50, 100 and 200 requests a second at 100, 120 and 600 ms: powers of 0.5, 0.83 and 0.33.
    runs = [
        run([record(n * gap, [(n * gap + ms, 1)]) for n in range(400)], name=str(gap))
        for gap, ms in ((20.0, 100.0), (10.0, 120.0), (5.0, 600.0))
    ]
    assert knee_of([figures_of(each) for each in runs]) == 1
    assert knee_of([figures_of(each) for each in runs[:2]]) is None


def test_a_run_of_nothing_is_refused() -> None:
    with pytest.raises(SpecError, match="no request"):
        figures_of(run([]))


def sample(at_s: float, **values: float) -> ServerSample:
    of = '{model="tensorrt_llm",version="1"}'
    return ServerSample(round(at_s * 1e9), {f"trireme_{name}{of}": value for name, value in values.items()})


def test_what_the_server_says_by_hand() -> None:
    constants = {
        "engine_weight_bytes": 1000.0, "engine_kv_bytes_per_token": 10.0, "engine_flops_per_token": 500.0,
        "engine_peak_bandwidth_bytes_per_second": 200_000.0, "engine_peak_flops": 1e6, "engine_max_num_seqs": 8.0,
    }  # fmt: skip
    samples = [
        sample(
            at, requests_running=4 + at % 2, kv_cache_usage_fraction=0.1 * at, engine_steps_total=100 * at,
            engine_step_seconds_total=0.5 * at, engine_prefill_steps_total=20 * at,
            engine_prefill_step_seconds_total=0.3 * at, engine_prompt_tokens_total=600 * at,
            engine_output_tokens_total=400 * at, engine_kv_read_tokens_total=1000 * at,
            engine_batch_sequences_total=400 * at, preemptions_total=at, **constants,
        )
        for at in range(5)
    ]  # fmt: skip
    window = Window(start_ns=0, end_ns=4 * 10**9, is_steady=True, why="")
    found = server_figures(samples, window, model="ensemble")
    assert found is not None
    assert (found.steps_per_s, found.busy_share, found.step_ms) == pytest.approx((100, 0.5, 5))
    assert (found.prefill_step_ms, found.decode_step_ms) == pytest.approx((15, 2.5))  # 0.3 s / 20; 0.2 s / 80
    assert found.prefill_tokens_per_s == pytest.approx(2000)  # 600 / 0.3 s
    assert found.batch_occupancy == pytest.approx(400 / 100 / 8)
    assert found.mbu == pytest.approx((100 * 1000 + 1000 * 10) / 0.5 / 200_000)
    assert found.mfu == pytest.approx(500 * 1000 / 0.5 / 1e6)
    assert (found.batch_max, found.kv_usage_max, found.preemptions) == pytest.approx((5, 0.4, 4))


def test_a_counter_that_begins_anew_is_not_counted_backwards() -> None:
    totals = (100.0, 150.0, 10.0, 40.0)  # the engine died after the second
    samples = [
        sample(at, engine_steps_total=total, engine_step_seconds_total=total / 100) for at, total in enumerate(totals)
    ]
    found = server_figures(samples, Window(start_ns=0, end_ns=10**10, is_steady=True, why=""), model="ensemble")
    assert found is not None
    assert found.steps_per_s == pytest.approx((50 + 10 + 30) / 3)


def test_without_samples_there_are_no_figures_of_the_server() -> None:
    window = Window(start_ns=0, end_ns=10**10, is_steady=True, why="")
    assert server_figures([sample(0), sample(1)], window, model="ensemble") is None
    found = server_figures([sample(at, requests_running=1) for at in range(3)], window, model="chat_ensemble")
    assert found is not None
    assert found.batch_mean is None
    assert found.num_samples == 3


@pytest.mark.parametrize(
    ("asked", "engine"),
    [
        ("ensemble", "tensorrt_llm"),
        ("chat_ensemble_canary", "chat_tensorrt_llm"),
        ("tensorrt_llm_bls", "tensorrt_llm"),
        ("small_tensorrt_llm", "small_tensorrt_llm"),
        ("mine", "tensorrt_llm"),
    ],
)
def test_which_engine_a_model_asks(asked: str, engine: str) -> None:
    assert engine_model(asked) == engine
