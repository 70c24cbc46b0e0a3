# SPDX-License-Identifier: Apache-2.0
"""The search for the highest load that holds its targets, on servers whose limit is known."""

import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from kserve_server import KServeServer, Step, response
from load_records import record, run, steady

from clients.load.capacity import capacity_search as capacity
from clients.load.capacity import capacity_trials
from clients.load.capacity.capacity_found import Capacity, Degradation, doubts_of
from clients.load.capacity.capacity_search import (
    MAX_TRIALS,
    Trial,
    best_of_three,
    highest,
    judge,
    refuse_failing,
    search,
)
from clients.load.capacity.capacity_trials import Bench
from clients.load.load_options import Load
from clients.load.run_command import ServerGone
from clients.load_report.run_figures import figures_of
from clients.load_report.slo import parse_targets
from clients.load_run.load_record import LoadRecord
from clients.load_run.run_folder import Run, RunInfo, write_run
from trireme.base.errors import RequestError, ServerError, Unavailable
from trireme.commands import run_command

pytestmark = pytest.mark.slow

TARGETS = parse_targets("ttft_p99=60,e2e_p50=95", of_percentiles=True)


def trial(why_not: str = "", *, load: float = 1.0, is_clear: bool = False, num_runs: int = 1) -> Trial:
    return Trial(load=load, why_not=why_not, is_clear=is_clear, measured={}, run="", num_runs=num_runs)


def limited(limit: float, tried: list[float]) -> object:
    def attempt(load: float) -> Trial:
        tried.append(load)
        return trial("" if load <= limit else "too much", load=load)

    return attempt


@pytest.mark.parametrize("limit", [0.3, 1.0, 7.7, 123.0, 5000.0])
@pytest.mark.parametrize("start", [1.0, 12.0])
def test_the_limit_is_found_to_the_precision(limit: float, start: float) -> None:
    tried: list[float] = []
    best = highest(search(limited(limit, tried), start=start, precision=0.05))  # type: ignore[arg-type]
    assert best is not None
    assert limit / 1.05 <= best.load <= limit
    assert len(tried) <= MAX_TRIALS


@pytest.mark.parametrize("limit", [1, 3, 28, 100])
def test_users_are_whole(limit: int) -> None:
    tried: list[float] = []
    best = highest(search(limited(limit, tried), start=4.0, precision=0.01, is_whole=True))  # type: ignore[arg-type]
    assert best is not None
    assert best.load == pytest.approx(limit, rel=0.011)
    assert all(load == round(load) for load in tried)


@pytest.mark.parametrize("is_whole", [False, True])
def test_where_nothing_holds_it_ends(is_whole: bool) -> None:
    tried: list[float] = []
    assert highest(search(limited(0.0, tried), start=4.0, precision=0.05, is_whole=is_whole)) is None  # type: ignore[arg-type]
    assert len(tried) <= 12


def test_a_run_holds_when_every_percentile_does() -> None:
    good = run(steady(200))  # TTFT 50, E2E 90
    verdict = judge(good, figures_of(good), TARGETS, max_error_share=0.01)
    assert verdict.holds
    assert verdict.measured == pytest.approx({"ttft_p99": 50, "e2e_p50": 90})
    slow = run(steady(200, ttft_ms=70))
    verdict = judge(slow, figures_of(slow), TARGETS, max_error_share=0.01)
    assert verdict.why_not == "ttft_p99 70.0 ms > 60 ms; e2e_p50 110.0 ms > 95 ms"


@pytest.mark.parametrize(("ttft_ms", "is_clear"), [(119, False), (121, True)])
def test_a_miss_is_clear_from_twice_a_target(ttft_ms: float, is_clear: bool) -> None:
    slow = run(steady(200, ttft_ms=ttft_ms))
    verdict = judge(slow, figures_of(slow), parse_targets("ttft_p99=60", of_percentiles=True), max_error_share=0.01)
    assert not verdict.holds
    assert verdict.is_clear is is_clear


def test_failures_and_a_growing_queue_do_not_hold_whatever_the_latencies() -> None:
    failing = run([*steady(200), *(record(number * 10, end="UNAVAILABLE") for number in range(200))])
    verdict = judge(failing, figures_of(failing), TARGETS, max_error_share=0.01)
    assert "failed > 1.0%" in verdict.why_not
    assert verdict.is_clear
    growing = run([record(n * 10, [(n * 10 + 30, 1), (n * 10 + 40 + n * 8, 1)]) for n in range(500)])
    lenient = parse_targets("ttft_p99=60", of_percentiles=True)
    verdict = judge(growing, figures_of(growing), lenient, max_error_share=0.01)
    assert (verdict.why_not, verdict.is_clear) == ("requests in flight kept rising", True)


def test_a_target_that_no_request_can_be_held_to_is_not_held() -> None:
    single = run([record(number * 10, [(number * 10 + 50, 1)]) for number in range(100)])
    targets = parse_targets("tpot_p99=50", of_percentiles=True)
    verdict = judge(single, figures_of(single), targets, max_error_share=0.01)
    assert verdict.why_not == "no request has a tpot"
    assert not verdict.is_clear, "what was not measured is not missed"


@pytest.mark.parametrize(
    ("missed", "is_clear", "holds"),
    [
        ([False], False, True),
        ([True, True], False, False),
        ([True, False, False], False, True),
        ([True, False, True], False, False),
        ([True], True, False),
    ],
    ids=["held", "missed twice", "missed by chance", "missed twice of three", "missed clearly"],
)
def test_a_near_miss_counts_when_it_comes_twice(missed: list[bool], is_clear: bool, holds: bool) -> None:
    asked: list[int] = []

    def once(number: int) -> Trial:
        asked.append(number)
        return trial("slow" if missed[number - 1] else "", is_clear=is_clear, num_runs=number)

    found = best_of_three(once)
    assert found.holds is holds
    assert asked == list(range(1, len(missed) + 1))
    assert found.num_runs == len(missed)


def degraded(factor: float, why_not: str = "") -> Degradation:
    return Degradation(
        factor=factor, rate_per_s=5 * factor, why_not=why_not, num_requests=30, goodput_per_s=5.0,
        goodput_interval=None, over_peak=1.0, failed_share=0.0, refused_share=0.0, measured={}, client_bound="", run="",
    )  # fmt: skip


def test_multiples_that_contradict_the_search_are_said() -> None:
    trials = [trial(load=5.0), trial("slow", load=6.0)]
    assert doubts_of([degraded(1), degraded(2, "slow"), degraded(3, "slow")], trials) == []
    [higher] = doubts_of([degraded(1), degraded(2), degraded(3, "slow")], trials)
    assert higher == "2x (10 requests/s) holds the targets too, though 6 requests/s did not in the search"
    [lower] = doubts_of([degraded(1, "ttft_p99 90.0 ms > 60 ms"), degraded(2, "slow")], trials)
    assert lower.endswith("not when it was put on again: ttft_p99 90.0 ms > 60 ms")
    assert doubts_of([degraded(2)], trials[:1]) == [], "the search met no limit"


def failed(end: str) -> LoadRecord:
    return record(0, end=end, error="the server's words")


def test_a_server_that_refuses_everything_ends_the_search_unless_it_is_overloaded() -> None:
    with pytest.raises(RequestError, match=r"3 of 3 requests of the run 'run' failed.*the server's words"):
        refuse_failing(run([failed("INVALID_ARG")] * 3), max_error_share=1.0)
    wrong = [record(0, end="INVALID_ARG", error=f"{number} tokens") for number in range(3)]
    with pytest.raises(RequestError, match="INVALID_ARG: 0 tokens"):
        refuse_failing(run([*wrong, *[failed("INTERNAL")] * 2]), max_error_share=1.0)
    with pytest.raises(ServerError, match="the server's words"):
        refuse_failing(run([failed("INTERNAL")] * 3), max_error_share=1.0)
    for end in ("UNAVAILABLE", "DEADLINE"):
        refuse_failing(run([failed(end)] * 3), max_error_share=0.01)


def test_requests_that_are_wrong_at_any_load_end_the_search_from_the_share_that_may_fail() -> None:
    with pytest.raises(RequestError, match="2 of 100 requests"):
        refuse_failing(run([*steady(98), failed("INVALID_ARG"), failed("INVALID_ARG")]), max_error_share=0.01)
    refuse_failing(run([*steady(99), failed("INVALID_ARG")]), max_error_share=0.01)
    refuse_failing(run([*steady(50), *[failed("INTERNAL")] * 50]), max_error_share=0.01)  # it may be its load
    refuse_failing(run(steady(9)), max_error_share=0.0)


class Played:
    """Runs made by hand in place of a server: up to 10 requests/s hold, but those named so, whose client was late.

    Attributes:
        happens: in place of a run, by its name.
        kept: what `capacity.json` held when each run began.
    """

    def __init__(self, *late: str, **happens: Callable[[Run], BaseException]) -> None:
        self.late = late
        self.happens = happens
        self.seeds: list[int] = []
        self.names: list[str] = []
        self.kept: list[Any] = []

    def put_on(self, load: Load, out: Path, **_: object) -> Run:
        self.seeds.append(load.seed)
        number, name = out.name.split("-", 1)
        assert int(number) == len(self.seeds)
        self.names.append(out.name)
        file = out.parent / "capacity.json"
        self.kept.append(json.loads(file.read_text()) if file.exists() else None)
        is_late = name in self.late
        slow = is_late or (load.rate_per_s or 0.0) > 10
        records = steady(60, ttft_ms=300 if slow else 50)
        for one in records:
            one.sent_ns += 200_000_000 * is_late
        made = run(records, num_users=load.num_users, name=out.name)
        write_run(out, made.info, made.records, made.samples)
        if happened := self.happens.get(f"at_{name}".replace("-", "_")):
            raise happened(made)
        return made

    def instead(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(capacity_trials, "put_on", self.put_on)
        monkeypatch.setattr(capacity_trials, "warm_up", lambda *_: None)

    def search(self, monkeypatch: pytest.MonkeyPatch, out: Path, *, precision: float = 0.3) -> Capacity:
        self.instead(monkeypatch)
        load = Load(url="here:1", workload={"kind": "fixed", "prompts": ["a"], "max_tokens": 5}, duration_s=1.0)
        bench = Bench(load, TARGETS, out, max_error_share=0.01, metrics=None)
        return bench.search(start=8.0, precision=precision, has_users=False)


class LongAnswers(Played):
    """A server with the first token after 50 ms and answers of 30 s, or of 60 s for eight users or more.

    No load is too high for it.
    """

    def put_on(self, load: Load, out: Path, **_: object) -> Run:
        self.names.append(out.name)
        assert load.num_users is not None
        e2e_s = 60 if load.num_users >= 8 else 30
        num_rounds = 3 if load.duration_s is None else math.ceil(load.duration_s / e2e_s)
        records = [
            record(begun_ms, [(begun_ms + 50, 1), (begun_ms + 1000 * e2e_s, 1)], session=user)
            for begun_ms in range(0, num_rounds * e2e_s * 1000, e2e_s * 1000)
            for user in range(load.num_users)
        ]
        return run(records, num_users=load.num_users, name=out.name)


def test_users_of_long_answers_are_tried_until_each_has_asked_some_times(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = LongAnswers()
    played.instead(monkeypatch)
    load = Load(url="here:1", workload={"kind": "fixed", "prompts": ["a"], "max_tokens": 2}, duration_s=30.0)
    targets = parse_targets("ttft_p99=500", of_percentiles=True)
    bench = Bench(load, targets, tmp_path, max_error_share=0.01, metrics=None)
    monkeypatch.setattr(bench, "_try_rate", lambda rate: trial("none here", load=rate))
    monkeypatch.setattr(capacity, "MAX_TRIALS", 6)
    found = bench.search(start=1.0, precision=0.3, has_users=True)
    assert found.users == 4 * 2**5
    assert all(each.holds and each.num_runs == 1 for each in found.user_trials)


def gone(made: Run) -> ServerGone:
    return ServerGone(made, 5.0, was_interrupted=False)


def test_a_client_that_was_late_for_once_does_not_end_the_search(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = Played("rate-8")
    found = played.search(monkeypatch, tmp_path)
    assert found.rate_trials[0].num_runs == 3
    assert found.rate_per_s is not None
    assert 10 / 1.3 <= found.rate_per_s <= 10
    assert [bool(each.why_not) for each in found.degradation] == [False, True, True]
    assert found.doubts == []
    assert len(set(played.seeds)) == len(played.seeds), "prompts that come again are in the prefix cache"


def test_a_client_that_is_late_again_ends_the_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(ServerError, match=r"03-rate-8-again-2 did not hold.*the client was the bottleneck"):
        Played("rate-8", "rate-8-again-2").search(monkeypatch, tmp_path)


def test_a_rate_that_does_not_hold_again_is_doubtful(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    [doubt] = Played("1x").search(monkeypatch, tmp_path).doubts
    assert "held in the search, but not when it was put on again: ttft_p99 300.0 ms > 60 ms" in doubt


def test_what_was_found_is_in_its_file_after_every_trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played()
    found = played.search(monkeypatch, tmp_path)
    first, *later = played.kept
    assert first is None
    assert [len(each["rate_trials"]) + len(each["degradation"]) for each in later] == list(range(len(later)))
    assert not any(each["is_whole"] for each in later)
    assert [each["rate_per_s"] for each in later[:2]] == [None, 8.0]
    assert msgspec.json.decode((tmp_path / "capacity.json").read_bytes(), type=Capacity) == found
    assert found.is_whole


def test_near_rates_have_a_folder_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played()
    played.search(monkeypatch, tmp_path, precision=0.0002)
    assert len({name.partition("-")[2] for name in played.names}) < len(played.names)
    assert len(set(played.names)) == len(played.names)


def test_a_server_that_is_lost_at_a_multiple_does_not_hold_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played = Played(at_2x=gone, at_3x=lambda _: Unavailable("no server takes requests"))
    found = played.search(monkeypatch, tmp_path)
    assert found.rate_per_s == pytest.approx(9.5, abs=1.0)
    once, twice, thrice = found.degradation
    assert not once.why_not
    assert twice.why_not.startswith("no server answers at here:1 since 5 s")
    assert twice.num_requests > 0
    assert (thrice.why_not, thrice.num_requests, thrice.run) == ("no server takes requests", 0, "")


PLAYED = ("--slo", "ttft_p99=60,e2e_p50=95", "--start", 8, "--precision", 0.3, "--without-users")


def fixed(tmp_path: Path) -> Path:
    path = tmp_path / "w.yaml"
    path.write_text("kind: fixed\nprompts: [a]\nmax_tokens: 5\n")
    return path


def test_a_search_that_is_interrupted_says_what_it_had_found(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Played(at_3x=lambda _: KeyboardInterrupt()).instead(monkeypatch)
    assert ask_capacity("here:1", tmp_path / "c", *PLAYED, workload=fixed(tmp_path)) == 130
    said = capsys.readouterr().out
    assert "did not come to its end" in said
    assert "requests/s hold the targets" in said
    assert "2x (" in said


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_without_matplotlib_the_result_and_a_report_without_pictures_are_there(
    form: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as where it is not installed
    Played().instead(monkeypatch)
    assert ask_capacity("here:1", tmp_path / "c", *PLAYED, *form, workload=fixed(tmp_path)) == 0
    said = capsys.readouterr()
    if form:
        assert json.loads(said.out)["rate_per_s"] > 8
    else:
        assert "requests/s hold the targets" in said.out
        assert "capacity.json, report.html and a folder for each run" in said.out
    assert "[plot]" in said.err
    assert "<svg" not in (tmp_path / "c" / "report.html").read_text()


def ask_capacity(url: str, out: Path, *args: object, workload: Path | None = None) -> int:
    asked = ["--workload", workload] if workload else ["--isl", 3, "--osl", 2]
    given = ["--url", url, "--out", out, *asked, "--metrics", "none", *args]
    with pytest.raises(SystemExit) as ended:
        run_command("bench", ["capacity", *map(str, given)])
    return int(ended.value.code or 0)


def counting(*script: Step) -> KServeServer:
    """Return a server that counts tokens: its first request is the one that asks for the count."""
    asked: list[object] = []

    def step(request: object) -> list[Step]:
        asked.append(request)
        counted = [response("x", num_output_tokens=1, num_input_tokens=3, final=True)]
        return counted if len(asked) == 1 else list(script)

    return KServeServer(step)


def test_the_servers_words_end_a_search_in_which_every_request_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with counting("[INVALID_ARG field=text_input] 9999 tokens, at most 512") as server:
        assert ask_capacity(server.url, tmp_path / "c", "--slo", "ttft_p99=500") == 2
        assert len(server.requests) <= 1 + 8 + 3, "no trial of 30 s"
    said = capsys.readouterr().err
    assert "9999 tokens, at most 512" in said
    assert "INVALID_ARG" in said


def test_the_servers_words_end_a_search_in_which_one_user_alone_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with counting("[UNAVAILABLE reason=engine_restarting] an engine is loaded") as server:
        assert ask_capacity(server.url, tmp_path / "c", "--slo", "ttft_p99=500") == 1
    said = capsys.readouterr()
    assert "3 of 3 requests of the run '01-alone' failed as they would at any load" in said.err
    assert "an engine is loaded" in said.err
    assert said.out == ""


def test_targets_that_one_user_alone_misses_end_the_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokens = [0.05, response("x", num_output_tokens=1), response("y", num_output_tokens=1, final=True)]
    with counting(*tokens) as server:
        assert ask_capacity(server.url, tmp_path / "c", "--slo", "ttft_p99=10,tpot_p99=500") == 0
        assert len(server.requests) <= 1 + 8 + 3
    assert "one user alone gets ttft_p50 " in capsys.readouterr().out
    found = json.loads((tmp_path / "c" / "capacity.json").read_text())
    assert found["rate_per_s"] is None
    assert found["alone"]["ttft_p50"] >= 50
    assert found["why_none"].startswith("ttft_p50 ")


def test_the_runs_of_an_earlier_search_are_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = RunInfo(tool="by hand", commands=[], url="here:1", model="ensemble", is_open=True)
    write_run(tmp_path / "c" / "rate-1", info, steady(1), [])  # of one that was ended by Ctrl-C
    before = (tmp_path / "c" / "rate-1" / "run.json").read_bytes()
    assert ask_capacity("127.0.0.1:9", tmp_path / "c", "--slo", "ttft_p99=500") == 2
    said = capsys.readouterr().err
    assert str(tmp_path / "c") in said
    assert "name another folder with --out" in said
    assert (tmp_path / "c" / "rate-1" / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--precision", "5"], "--precision must be a share between 0 and 1"),
        (["--precision", "nan"], "--precision"),
        (["--max-errors", "2"], "--max-errors must be a share from 0"),
        (["--trial", "inf"], "--trial must be above 0 and at most 86,400 s"),
        (["--start", "0"], "--start must be above 0"),
        (["--start", "500000"], "--start 500000 for --trial 30 s is more than 10000000 requests"),
    ],
)
def test_what_has_no_meaning_is_refused(
    tmp_path: Path, args: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ask_capacity("127.0.0.1:9", tmp_path / "c", "--slo", "ttft_p99=500", *args) == 2
    assert said in capsys.readouterr().err
