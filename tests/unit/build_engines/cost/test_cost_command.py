# SPDX-License-Identifier: Apache-2.0
"""`trireme cost`: what it prints, reads, writes and refuses; tenants; and the committed page of worked cases."""

import datetime
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_engines.cost.bill import bill
from build_engines.cost.cost_command import cost, with_traffic_of
from build_engines.cost.cost_spec import CostSpec, Traffic, load_document
from build_engines.cost.managed_prices import EXAMPLE as MANAGED
from build_engines.cost.managed_prices import ManagedPrices
from build_engines.cost.report_tables import count
from build_engines.cost.usage_records import Usage, UsageRecord, load_usage, tenant_shares
from clients.load_report.document import Document, RunPart
from clients.load_report.latency_percentiles import Spread
from clients.load_report.rates import Rate
from clients.load_report.run_figures import ClientFigures, RunFigures
from clients.load_report.server_figures import ServerFigures
from clients.load_report.steady_state import Window
from documents.cost_cases_page import scaled_to
from trireme.base.project_files import CODE_ROOT
from trireme.commands import run_command

EXAMPLES = CODE_ROOT / "examples" / "cost"
MEASURED = str(EXAMPLES / "measured.yaml")


def run(capsys: pytest.CaptureFixture[str], *args: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ended:
        run_command("cost", list(args))
    captured = capsys.readouterr()
    assert ended.value.code == code, captured.err
    return captured.err if code else captured.out


def data_of(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    return json.loads(run(capsys, *args, "--json"))


def test_two_dollars_an_hour_at_a_thousand_tokens_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "--usd-per-gpu-hour", "2", "--output-tokens-per-s", "1000")
    assert re.search(r"output +2\.63B +0\.556", shown)
    assert "Not in: egress, storage, engineers (nothing was given)." in shown


def test_half_busy_costs_twice_as_much_and_half_of_it_is_idle(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--usd-per-gpu-hour", "2", "--output-tokens-per-s", "1000", "--utilisation", "0.5")
    found = data_of(capsys, *args)["bill"]
    assert found["usd_per_million_output_tokens"] == pytest.approx(2 / 3.6 * 2)
    assert found["gpu_idle_usd"] == pytest.approx(found["gpu_usd"] / 2)


def test_a_planned_replica_costs_what_the_plan_says(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--isl", "1000", "--osl", "300", "--gpu", "h100", "--format", "fp8")
    found = data_of(capsys, "--model", "llama-3.1-8b", "--usd-per-gpu-hour", "2.5", *args)
    with pytest.raises(SystemExit):
        run_command(
            "plan",
            ["llama-3.1-8b", *args, "--kv-format", "bf16", "--price-per-gpu-hour", "2.5", "--tp-size", "1", "--json"],
        )
    planned = json.loads(capsys.readouterr().out)["options"][0]
    whole = found["bill"]["usd_per_million_output_tokens"] + found["bill"]["usd_per_million_input_tokens"] * 1000 / 300
    # The plan has no tokens but answers; their price bears the prompts.
    assert found["bill"]["pools"][0]["rates"]["gpus"] == 1
    assert whole == pytest.approx(planned["usd_per_million_tokens"], rel=1e-6)


def benched(
    name: str, server: ServerFigures | None = None, *, has_inputs: bool = True, load: float = 1
) -> dict[str, object]:
    """Return a run of a `trireme bench report`: 6,000 tokens/s in, 1,000 out, or `load` times that."""

    def tokens(mean: float) -> Spread:
        return Spread(count=9, num_requests=9, mean=mean, stddev=0, min=1, max=999, percentiles={}, intervals={})

    figures = RunFigures(
        name=name,
        window=Window(start_ns=0, end_ns=10**10, is_steady=True, why=""),
        num_all=9,
        num_requests=9,
        ends={"done": 9},
        num_empty=0,
        num_refused=0,
        num_retried=0,
        requests=Rate(10 * load, None),
        output_tokens=Rate(1000 * load, None),
        input_tokens=Rate(6000 * load, None) if has_inputs else None,
        isl=tokens(600) if has_inputs else None,
        osl=tokens(100),
        latencies={},
        targets=(),
        goodput=None,
        goodput_share=None,
        client=ClientFigures(num_processes=1, cpu_share=None, lag_p99_ms=None, why_bound=""),
        server=server,
    )
    return {"info": {}, "load": "9 users", "figures": figures, "warnings": ["Not steady: it grew."] if server else []}


# In 10 s of work 100 steps: 75 of 80 ms without a prompt, 25 of 160 ms with 2,400 tokens of prompts each. Prompts
# add 25 x 80 ms = 2 s for 60,000 tokens; answers have 8 s for 10,000.
STEPS = ServerFigures(
    num_samples=9, step_ms=100, prefill_step_ms=160, decode_step_ms=80, prefill_tokens_per_s=60_000 / 4,
    decode_tokens_per_s=10_000 / 10, num_gpus=2,
)  # fmt: skip


SATURATED = "taken for all that a replica can do: too little where its load was limited"


def report_of(path: Path, *runs: dict[str, object], knee: str | None = None) -> str:
    assert {"runs", "knee"} <= set(Document.__struct_fields__)
    assert {"figures", "warnings"} <= set(RunPart.__struct_fields__)
    path.write_bytes(msgspec.json.encode({"title": "a test", "runs": runs, "knee": knee}))
    return str(path)


def test_a_benchmark_s_mix_of_tokens_is_divided_by_a_weight(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    args = ("--usd-per-gpu-hour", "3.6", "--report", report_of(tmp_path / "bench.json", benched("rate-5")))
    found = data_of(capsys, *args, "--output-weight", "4")["bill"]
    # 10,000 shares of a second for 0.001 $: 0.1 $ for a million of them.
    assert found["usd_per_million_input_tokens"] == pytest.approx(0.1)
    assert found["usd_per_million_output_tokens"] == pytest.approx(0.4)
    assert found["pools"][0]["rates"]["source"] == f"bench.json, run rate-5; {SATURATED}"
    assert "does not tell prefill from decode" in run(capsys, *args, code=2)


def test_a_benchmark_with_the_server_s_steps_tells_prefill_from_decode(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    args = ("--usd-per-gpu-hour", "3.6", "--report", report_of(tmp_path / "bench.json", benched("rate-5", STEPS)))
    (pool,) = data_of(capsys, *args)["bill"]["pools"]
    assert pool["rates"]["prefill_tokens_per_s"] == pytest.approx(30_000)
    assert pool["rates"]["decode_tokens_per_s"] == pytest.approx(1250)
    assert pool["rates"]["gpus"] == 2
    assert pool["prompt_share"] == pytest.approx(0.2)  # 600 tokens and 100
    assert pool["rates"]["source"] == "bench.json, run rate-5; Not steady: it grew."


def test_prompts_that_a_benchmark_found_in_the_cache_are_not_paid_for_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    # The same steps and 100 requests of 600 tokens and 100, but 480 tokens of each prompt were never computed.
    reused = msgspec.structs.replace(STEPS, prefill_tokens_per_s=12_000 / 4)
    report = report_of(tmp_path / "bench.json", benched("rate-5", reused))
    found = data_of(capsys, "--usd-per-gpu-hour", "3.6", "--report", report, "--rate", "20")
    (pool,) = found["bill"]["pools"]
    assert pool["rates"]["prefill_tokens_per_s"] == pytest.approx(6000)  # of those that are computed
    assert pool["rates"]["decode_tokens_per_s"] == pytest.approx(1250)
    assert found["assumptions"]["traffic"]["cached_fraction"] == 0.8
    assert pool["tokens"]["cached"] == pytest.approx(4 * pool["tokens"]["prefilled"])
    # 0.1 s a request, as measured: 2 of the 4 replicas (3 at 0.7, a spare) are at work.
    assert pool["replicas_by_hour"] == [4] * 24
    assert pool["utilisation"] == pytest.approx(0.5)


@pytest.mark.parametrize("computed", [58_000, 59_900, 60_000, 61_000])
def test_a_request_of_a_benchmark_takes_the_time_that_was_measured(
    computed: int, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    counted = msgspec.structs.replace(STEPS, prefill_tokens_per_s=computed / 4)
    report = report_of(tmp_path / "bench.json", benched("rate-5", counted))
    found = data_of(capsys, "--usd-per-gpu-hour", "3.6", "--report", report)
    assert found["assumptions"]["traffic"]["requests_per_s"] == pytest.approx(10)  # of a replica that is never idle


def test_of_several_runs_the_knee_is_taken_or_the_one_that_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    several = benched("one", STEPS), benched("two", STEPS), benched("three", STEPS, load=2)

    def source(*args: str) -> str:
        report = report_of(tmp_path / "bench.json", *several, knee="two")
        found = data_of(capsys, "--usd-per-gpu-hour", "1", "--report", report, *args)
        return str(found["bill"]["pools"][0]["rates"]["source"])

    assert source() == "bench.json, run two; Not steady: it grew."
    assert source("--run", "one") == "bench.json, run one; Not steady: it grew."
    report = report_of(tmp_path / "bench.json", *several)
    said = run(capsys, "--usd-per-gpu-hour", "1", "--report", report, code=2)
    assert "it has several runs; name one with --run: one, two, three" in said
    said = run(capsys, "--usd-per-gpu-hour", "1", "--report", report, "--run", "six", code=2)
    assert "it has no run 'six'" in said
    report = report_of(tmp_path / "bench.json", benched("one", has_inputs=False))
    assert "does not say how many tokens went in" in run(capsys, "--usd-per-gpu-hour", "1", "--report", report, code=2)
    (tmp_path / "bench.json").write_text("{}")
    assert "give the JSON of trireme bench report" in run(capsys, "--usd-per-gpu-hour", "1", "--report", report, code=2)


@pytest.mark.parametrize("knee", ["two", None])
@pytest.mark.parametrize("server", [None, ServerFigures(num_samples=9, step_ms=100)], ids=["no metrics", "no decoding"])
def test_one_mix_is_that_of_the_run_with_the_most_tokens_and_not_of_the_knee(
    server: ServerFigures | None, knee: str | None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    loads = {"one": 0.5, "two": 1.0, "three": 2.0, "four": 1.9}
    runs = [benched(name, server, load=load) for name, load in loads.items()]
    report = report_of(tmp_path / "bench.json", *runs, knee=knee)
    args = ("--usd-per-gpu-hour", "3.6", "--output-weight", "4", "--report", report)

    def rates(*more: str) -> Any:
        return data_of(capsys, *args, *more)["bill"]["pools"][0]["rates"]

    fastest = rates()
    assert fastest["source"].startswith("bench.json, run three; ")
    assert fastest["source"].endswith(SATURATED)
    assert fastest["prefill_tokens_per_s"] == pytest.approx(2 * 10_000)
    named = rates("--run", "two")
    assert named["source"].startswith("bench.json, run two; ")
    assert named["prefill_tokens_per_s"] == pytest.approx(10_000)


def test_a_free_tier_is_never_dearer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    offers = tmp_path / "offers.yaml"
    free = "{name: a free tier, input_usd_per_million: 0, output_usd_per_million: 0, source: a test}"
    paid = "{name: another, input_usd_per_million: 0, output_usd_per_million: 1, source: a test}"
    offers.write_text(f"collected: 2026-11-01\nprices:\n- {free}\n- {paid}\n")
    args = (MEASURED, "--managed", str(offers))
    shown = run(capsys, *args, "--out", str(tmp_path / "report"))
    assert re.search(r"a free tier +0\.000 +\$0\.00 +never, it is free +\d", shown)
    assert re.search(r"another +0\.217 +\$\S+ +\S+x +\S+[MB] +\d", shown)
    never, found = json.loads((tmp_path / "report" / "cost.json").read_text())["break_even"]
    assert (never["managed_usd"], never["first_tokens"], never["tokens"]) == (0, None, None)
    assert found["tokens"] > 0


def test_a_fleet_that_costs_nothing_has_nothing_to_save(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    free = ("prices.on_demand_usd_per_gpu_hour=0", "prices.spot_usd_per_gpu_hour=0", "other.engineers=0")
    args = (MEASURED, *(part for change in free for part in ("--set", change)), "--out", str(tmp_path))
    assert "Levers" not in run(capsys, *args)
    found = json.loads((tmp_path / "cost.json").read_text())
    assert (found["bill"]["total_usd"], found["levers"]) == (0, None)


def test_a_rate_sizes_the_fleet(capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--usd-per-gpu-hour", "2", "--output-tokens-per-s", "1000", "--osl", "100", "--rate", "20")
    found = data_of(capsys, *args)
    assert found["bill"]["pools"][0]["replicas_by_hour"] == [4] * 24  # 2 at work, 3 at 0.7, a spare
    assert found["sensitivity"]["usd_per_million_tokens"]


def test_one_value_is_changed_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    plain = data_of(capsys, MEASURED)["bill"]["gpu_usd"]
    on_spot = data_of(capsys, MEASURED, "--set", "prices.spot_fraction=1", "--set", "prices.spot_lost_fraction=0")
    assert on_spot["bill"]["gpu_usd"] == pytest.approx(plain / 2)


def test_a_report_has_pictures_and_needs_no_other_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, MEASURED, "--out", str(tmp_path / "made" / "here"))
    made = {path.name: path for path in (tmp_path / "made" / "here").iterdir()}
    assert set(made) == {
        "cost.md", "cost.json", "levers.png", "self-hosted_against_managed.png", "what_matters_most.png",
    }  # fmt: skip
    assert all(path.read_bytes().startswith(b"\x89PNG") for name, path in made.items() if name.endswith(".png"))
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", made["cost.md"].read_text()):
        assert picture in made
    assert json.loads(made["cost.json"].read_text())["bill"]["total_usd"] > 0


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "give --usd-per-gpu-hour, or a file"),
        (("--usd-per-gpu-hour", "2"), "nothing says how fast a replica is; give --output-tokens-per-s"),
        (("--usd-per-gpu-hour", "2", "--output-tokens-per-s", "9", "--gpu", "h100"), "--gpu is a question to the plan"),
        (
            ("--usd-per-gpu-hour", "2", "--output-tokens-per-s", "9", "--isl", "9"),
            "--isl: what was measured has its mix",
        ),
        (("--usd-per-gpu-hour", "2", "--model", "llama-3.1-8b", "--output-tokens-per-s", "9"), "give one of the two"),
        (("--usd-per-gpu-hour", "2", "--model", "llama-3.1-8b", "--input-tokens-per-s", "9"), "give one of the two"),
        (("--usd-per-gpu-hour", "2", "--output-tokens-per-s", "9", "--run", "one"), "--run one is of a report; give"),
        (("--usd-per-gpu-hour", "2", "--output-tokens-per-s", "9", "--rate", "1", "--utilisation", "1"), "give one"),
        ((MEASURED, "--usd-per-gpu-hour", "2"), "--usd-per-gpu-hour stands in measured.yaml too; change it with --set"),
        ((MEASURED, "--set", "prices.spot_fraction"), "write KEY=VALUE"),
        ((MEASURED, "--set", "prices.spot_fractoin=1"), "did you mean spot_fraction"),
        ((MEASURED, "--set", "name.first=1"), "name has no keys of its own"),
        (("nowhere.yaml",), "nowhere.yaml: cannot be read"),
        ((MEASURED, "--managed", "nowhere.yaml"), "nowhere.yaml: cannot be read"),
        ((MEASURED, "--usage", "nowhere.jsonl"), "nowhere.jsonl: cannot be read"),
        (("--usd-per-gpu-hour", "2", "--report", "nowhere.json"), "--report nowhere.json: cannot be read"),
    ],
)
def test_what_is_wrong_is_told_with_the_next_step(
    args: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in run(capsys, *args, code=2)


def test_examples_of_the_help_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(EXAMPLES.parent)
    Path("requests.jsonl").write_text("\n".join(lines(50, model="llama-3.1-70b")))
    shutil.copy(MANAGED, "offers.yaml")
    report_of(Path("bench.json"), benched("rate-5", STEPS))
    examples = re.findall(r"^ +trireme cost (.*)$", cost.__doc__ or "", re.MULTILINE)
    assert len(examples) == 6
    for example in examples:
        assert run(capsys, *example.split())
    assert Path("report/cost.md").exists()


# Tenants.


def spec_for(model: str = "m") -> CostSpec:
    return CostSpec.model_validate(
        {
            "engine": {"kind": "rates", "model": model, "prefill_tokens_per_s": 1e4, "decode_tokens_per_s": 1e3},
            "prices": {"on_demand_usd_per_gpu_hour": 2},
            "traffic": {"requests_per_s": 1, "isl": 100, "osl": 100},
        }
    )


def record(tenant: str, prompt: int, answer: int, *, cached: int = 0, hour: float = 0.0) -> UsageRecord:
    time = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC) + datetime.timedelta(hours=hour)
    return UsageRecord(
        tenant=tenant, model="m", input_tokens=prompt, output_tokens=answer, cached_tokens=cached, time=time
    )


def test_a_tenant_pays_for_the_time_of_its_tokens_and_not_for_cached_ones() -> None:
    usage = Usage()
    usage.add(record("prompts", 10_000, 0))  # 1 s
    usage.add(record("answers", 0, 1_000))  # 1 s
    usage.add(record("cached", 30_000, 2_000, cached=30_000))  # 2 s
    found = bill(spec_for())
    shares = tenant_shares(found, usage)
    assert [(one.tenant, round(one.fraction, 9)) for one in shares] == [
        ("cached", 0.5), ("answers", 0.25), ("prompts", 0.25),
    ]  # fmt: skip
    assert shares[0].usd == pytest.approx(found.total_usd / 2)


@given(
    st.lists(
        st.tuples(st.sampled_from("abcde"), st.integers(0, 10_000), st.integers(1, 5_000), st.floats(0, 1)),
        min_size=1,
        max_size=40,
    )
)
def test_tenants_share_the_whole_bill(asked: list[tuple[str, int, int, float]]) -> None:
    usage = Usage()
    for tenant, prompt, answer, share in asked:
        usage.add(record(tenant, prompt, answer, cached=int(prompt * share)))
    found = bill(spec_for().model_copy(update={"traffic": usage.traffic("m")}))
    shares = tenant_shares(found, usage)
    assert {one.tenant for one in shares} == {tenant for tenant, *_ in asked}
    assert sum(one.usd for one in shares) == pytest.approx(found.total_usd)
    assert sum(one.fraction for one in shares) == pytest.approx(1)
    assert sum(one.requests for one in shares) == len(asked)
    assert sum(one.tokens.total for one in shares) == sum(prompt + answer for _, prompt, answer, _ in asked)


def test_traffic_is_that_of_the_records() -> None:
    usage = Usage()
    for hour in range(48):
        for _ in range(3 if hour % 24 < 12 else 1):
            usage.add(record("a", 1000, 100, cached=250, hour=hour + 0.5))
    traffic = usage.traffic("m")
    assert traffic.requests_per_s == pytest.approx(96 / (48 * 3600))
    assert (traffic.isl, traffic.osl, traffic.cached_fraction) == (1000, 100, 0.25)
    assert traffic.hourly == (3.0,) * 12 + (1.0,) * 12  # requests an hour


def every_minute(first_minute: int, minutes: int) -> Usage:
    usage = Usage()
    for minute in range(first_minute, first_minute + minutes):
        usage.add(record("a", 1000, 100, hour=minute / 60))
    return usage


@pytest.mark.parametrize(
    ("first_minute", "minutes"),
    [(0, 24 * 60), (0, 36 * 60), (530, 24 * 60), (530, 24 * 60 + 20), (550, 25 * 60), (59, 49 * 60)],
)
def test_the_same_load_every_minute_has_no_peak_whenever_the_records_begin_and_end(
    first_minute: int, minutes: int
) -> None:
    traffic = every_minute(first_minute, minutes).traffic("m")
    assert traffic.hourly == pytest.approx((60,) * 24, rel=0.02)  # a minute at an end may count or not
    assert traffic.requests_per_s == pytest.approx(1 / 60, rel=0.002)


def test_hours_that_were_seen_twice_count_once() -> None:
    usage = Usage()
    for hour in range(36):  # 8 requests in each hour before noon, 2 in the others
        for quarter in range(8 if hour % 24 < 12 else 2):
            usage.add(record("a", 1000, 100, hour=hour + quarter / 8))
    traffic = usage.traffic("m")
    assert traffic.hourly == (8.0,) * 12 + (2.0,) * 12
    assert traffic.requests_per_s == pytest.approx(5 / 3600)  # not 6, the mean of 36 hours


def test_a_few_records_are_no_peak() -> None:
    usage = Usage()
    for hour in (8.9999, 12.5, 32.0001):  # a day but for 59 minutes
        usage.add(record("a", 1000, 100, hour=hour))
    found = usage.traffic("m").hourly
    assert found is not None
    assert max(found) == 4.0  # two in what is taken for half an hour
    usage = Usage()
    for hour in (0.5, 40.5):  # nothing in any whole hour
        usage.add(record("a", 1000, 100, hour=hour))
    assert usage.traffic("m").hourly is None
    assert usage.traffic("m").requests_per_s == pytest.approx(2 / (41 * 3600))


def test_less_than_a_day_of_records_keeps_the_shape_of_the_file_s_day() -> None:
    half_a_day = every_minute(0, 12 * 60)
    for day in ({"peak_over_mean": 1.8}, {"hourly": [1] * 12 + [3] * 12}):
        spec = spec_for()
        spec = spec.model_copy(update={"traffic": Traffic.model_validate({**spec.traffic.model_dump(), **day})})
        found = with_traffic_of(spec, half_a_day).traffic
        assert (found.peak_over_mean, found.hourly) == (spec.traffic.peak_over_mean, spec.traffic.hourly)
        assert found.isl == 1000
        assert with_traffic_of(spec, every_minute(0, 24 * 60)).traffic.hourly == pytest.approx((60,) * 24, rel=0.02)


def test_less_than_a_day_of_records_has_no_shape_of_a_day() -> None:
    usage = Usage()
    usage.add(record("a", 1000, 100, hour=3.2))
    usage.add(record("a", 1000, 100, hour=5.9))
    assert usage.traffic("m").hourly is None
    assert usage.traffic("m").requests_per_s == pytest.approx(2 / (3 * 3600))  # 3:00 to 6:00


def lines(count: int, *, model: str = "my-8b") -> Iterator[str]:
    rng = random.Random(7)
    for number in range(count):
        prompt = rng.randrange(1, 2000)
        yield json.dumps(
            {
                "tenant": rng.choice(["acme", "initech", "umbrella"]), "model": model, "input_tokens": prompt,
                "output_tokens": rng.randrange(1, 500), "cached_tokens": rng.randrange(prompt),
                "time": f"2026-11-{2 + number % 7:02}T{rng.randrange(24):02}:15:00Z",
            }
        )  # fmt: skip


def test_records_price_tenants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text("\n".join(lines(2000)) + "\n")
    found = data_of(capsys, MEASURED, "--usage", str(file))
    assert {one["tenant"] for one in found["tenants"]} == {"acme", "initech", "umbrella"}
    assert sum(one["usd"] for one in found["tenants"]) == pytest.approx(found["bill"]["total_usd"])
    assert len(found["assumptions"]["traffic"]["hourly"]) == 24
    shown = run(capsys, MEASURED, "--usage", str(file))
    assert "Tenants" in shown
    assert "initech" in shown
    refused = run(capsys, MEASURED, "--usage", str(file), "--set", "engine.model=other", code=2)
    assert "--usage has requests of my-8b, and the engine serves 'other'" in refused


def test_a_tenant_s_name_with_a_bar_stays_in_its_column(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    who = {"tenant": "acme | eu", "model": "my-8b", "input_tokens": 10, "output_tokens": 5}
    file.write_text(json.dumps({**who, "time": "2026-11-02T08:00:00Z"}) + "\n")
    assert "acme | eu" in run(capsys, MEASURED, "--usage", str(file), "--out", str(tmp_path))
    (row,) = re.findall("^.*acme.*$", (tmp_path / "cost.md").read_text(), re.MULTILINE)
    assert row.startswith("| acme &#124; eu | 1 | 10 |")


@pytest.mark.parametrize(
    ("number", "shown"),
    [(None, "never"), (12.0, "12"), (999.4, "999"), (999.6, "1K"), (999_499, "999K"), (999_600, "1M"), (5e12, "5T")],
)
def test_a_count_has_three_digits_and_a_letter(number: float | None, shown: str) -> None:
    assert count(number) == shown


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"input_tokens": -1}, "line 2: .*input_tokens is -1; it is 0 or more"),
        ({"input_tokens": 10**26}, "line 2: .*input_tokens is 1000.*at most"),
        ({"input_tokens": 10**9}, "line 2: .*input_tokens is 1000000000; it is 0 or more, and at most 100,000,000"),
        ({"cached_tokens": 11}, r"line 2: .*cached_tokens \(11\) > input_tokens \(10\)"),
        ({"output_tokens": "7"}, "line 2: Expected `int`, got `str`"),
        ({"tennant": "x"}, "line 2: .*tennant.*a line is an object of tenant, model"),
        ({"time": "yesterday"}, "line 2: Invalid RFC3339"),
    ],
    ids=["negative", "huge", "large", "cached", "text", "unknown", "time"],
)
def test_a_wrong_record_is_refused_by_its_line(
    change: dict[str, object], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good = {"tenant": "a", "model": "my-8b", "input_tokens": 10, "output_tokens": 5, "time": "2026-11-02T08:00:00Z"}
    file = tmp_path / "usage.jsonl"
    file.write_text(f"{json.dumps(good)}\n{json.dumps({**good, **change})}\n")
    assert re.search(says, run(capsys, MEASURED, "--usage", str(file), code=2))


def test_a_file_without_records_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text("\n\n")
    assert "has no record" in run(capsys, MEASURED, "--usage", str(file), code=2)
    file.write_bytes(b"\xff\xfe{}\n")
    assert "line 1" in run(capsys, MEASURED, "--usage", str(file), code=2)


def test_a_million_records_would_not_be_kept(tmp_path: Path) -> None:
    file = tmp_path / "usage.jsonl"
    file.write_text("\n".join(lines(5000)))
    usage = load_usage(file)
    assert len(usage.requests) == len(usage.tokens) == 3
    assert sum(usage.requests.values()) == sum(usage.by_hour.values()) == 5000
    assert len(usage.by_hour) <= 7 * 24


# What is committed.


def test_the_half_million_of_the_case_is_half_a_million_and_is_halved() -> None:
    spec = load_document(CostSpec, EXAMPLES / "halve_500k.yaml")
    assert bill(spec).total_usd == pytest.approx(500_000, rel=0.01)
    less = bill(scaled_to(spec, 400_000)).total_usd
    assert 390_000 < less <= 400_000  # a replica is 11,650 $


def test_the_example_prices_say_when_and_where_from() -> None:
    prices = load_document(ManagedPrices, MANAGED)
    assert prices.collected <= datetime.datetime.now(datetime.UTC).date()
    assert all(len(one.source) > 20 for one in prices.prices)
    assert {one.name for one in prices.of("llama-3.1-8b")} == {"groq llama-3.1-8b", "a frontier model, gemini-2.5-pro"}
    assert prices.of("a model that nobody sells") == prices.prices
