# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/rollouts.md: whole rollouts under 32 streams, and what a shadow costs its users (`make soak`)."""

import asyncio
import random
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rollout_site import DEFAULT_GATE, GATE, HARD, HARD_TOKENS, PATIENCE_S, STEPS, WIDE_OPEN, Site, Texts, serving
from streams_under_change import PROMPTS, RoutedLoad, request

from benchmarks.support.report import environment, ratio_of_quantiles, write_result
from clients.rollout.records.rollout_plan import Mode, Plan
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.routing.routed_client import RoutedClient
from ensemble_configs.split.outcome import Outcome

pytestmark = [pytest.mark.soak, pytest.mark.quiet, pytest.mark.timeout(1800)]

WINDOW_S = 8.0
NUM_WINDOWS = 24
FOUND: dict[str, Any] = {"benchmark": "rollouts", "gates": {WIDE_OPEN: GATE, DEFAULT_GATE: {}}, "rollouts": []}


@pytest.fixture(scope="module", autouse=True)
def result() -> Iterator[None]:
    """Write the result once all tests have passed."""
    where = environment()
    yield
    assert len(FOUND["rollouts"]) == 7, "figures of a part are no result"
    write_result("rollouts", {**FOUND, "environment": where})


def streams(site: Site, by_release: Texts) -> RoutedLoad:
    return RoutedLoad(site.server.url, site.split_url, by_release, max_tokens=HARD_TOKENS, pause_s=0.0)


def run_out(running: subprocess.Popen[str], load: RoutedLoad, *, code: int = 0) -> str:
    """Return what a rollout said until its end, which is the one that is due."""
    text, _ = running.communicate(timeout=PATIENCE_S * 5)
    assert running.returncode == code, text
    time.sleep(2)  # whoever comes after it must be served, too
    assert load.wrong == []
    return text


def note(name: str, load: RoutedLoad, begun_s: float, *, gate: str = WIDE_OPEN) -> None:
    FOUND["rollouts"].append(
        {
            "name": name,
            "gate": gate,
            "seconds": round(time.monotonic() - begun_s, 1),
            "answers": {str(release): count for release, count in sorted(load.num_answers.items())},
            "failed_cut_or_mixed": len(load.wrong),
            "refused": len(load.refused),
        }
    )


def test_a_canary_from_1_to_100_percent(hard_site: Site, hard_texts: Texts) -> None:
    by_release = {seed: hard_texts[seed] for seed in (1, 2)}
    pid, begun_s = hard_site.served()["engine_pids"]["1"], time.monotonic()
    with streams(hard_site, by_release) as load:
        running = hard_site.start(hard_site.candidate(seed=2), steps="1,5,25,50,100")
        while running.poll() is None and "1" in (pids := hard_site.served()["engine_pids"]):
            assert pids["1"] == pid
            time.sleep(0.5)
        run_out(running, load)
    note("canary, 1, 5, 25, 50, 100 %", load, begun_s)


@pytest.fixture
def slow_site(tmp_path: Path) -> Iterator[Site]:
    """Yield a server whose steps take 50 ms, beside which what a busy machine adds to an arm is little.

    With 20 ms and all that two cores can do, the default gate had no verdict on two alike after 35,000 requests.
    """
    with serving(tmp_path, step_ms=50.0) as server:
        yield Site(server)


@pytest.mark.parametrize(
    ("engine", "phase", "reason"),
    [
        ({"seed": 2}, "promoted", "no metric is worse by its effect size"),
        ({"seed": 2, "step_ms": 55.0}, "rolled_back", "TPOT"),
    ],
    ids=["as good", "a tenth slower"],
)
def test_the_default_gate(slow_site: Site, texts: Texts, engine: dict[str, Any], phase: str, reason: str) -> None:
    by_release = {1: texts[1], 2: texts[2]}
    begun_s = time.monotonic()
    # Without pauses they would fall into step with the engine, and TTFT would be that of the step in which they did.
    with RoutedLoad(slow_site.server.url, slow_site.split_url, by_release, pause_s=0.5) as load:
        running = slow_site.start_with_default_gate(slow_site.candidate(**engine))
        text = run_out(running, load, code=0 if phase == "promoted" else 1)
    found = slow_site.status()
    assert (found["phase"], found["plan"]["gate"]) == (phase, {})
    assert reason in text
    assert load.refused == []
    assert slow_site.served()["release"] == (2 if phase == "promoted" else 1)
    what = "one as good, promoted" if phase == "promoted" else "one with TPOT 10 % longer, rolled back"
    note(f"canary, {STEPS.replace(',', ', ')} %: {what}", load, begun_s, gate=DEFAULT_GATE)


def test_a_rollback_in_the_middle(hard_site: Site, hard_texts: Texts) -> None:
    by_release = {seed: hard_texts[seed] for seed in (1, 2)}
    pid, begun_s = hard_site.served()["engine_pids"]["1"], time.monotonic()
    with streams(hard_site, by_release) as load:
        running = hard_site.start(
            hard_site.candidate(seed=2), steps="25,50,100", options=("--step-requests", "1000000")
        )
        load.wait_for(2, 200, timeout_s=PATIENCE_S)
        hard_site.done("abort")
        run_out(running, load, code=1)
    assert hard_site.served()["engine_pids"] == {"1": pid}
    note("canary, aborted in the middle", load, begun_s)


def test_a_test_of_three_arms(hard_site: Site, hard_texts: Texts) -> None:
    by_release = hard_texts
    begun_s = time.monotonic()
    with streams(hard_site, by_release) as load:
        options = ("--mode", "ab", "--max-requests", "300")
        running = hard_site.start(*(hard_site.candidate(seed=seed) for seed in (2, 3)), steps="", options=options)
        load.wait_for(3, 10, timeout_s=PATIENCE_S)
        hard_site.wait_for_phase("held")
        hard_site.done("promote", "--release", "3")
        run_out(running, load)
    note("A/B test of three arms, the third promoted", load, begun_s)


def test_two_servers(hard_site: Site, tmp_path: Path, hard_texts: Texts) -> None:
    by_release = {seed: hard_texts[seed] for seed in (1, 2)}
    with serving(tmp_path / "second", **HARD) as second:
        begun_s = time.monotonic()
        with streams(hard_site, by_release) as load:
            folder = str(second.folder / "build" / "live")
            running = hard_site.start(
                hard_site.candidate(seed=2), steps="5,50,100", options=("--second-server", folder, "--apart")
            )
            run_out(running, load)
    note("canary, two servers, the first loaded anew", load, begun_s)


def test_a_shadow(hard_site: Site, hard_texts: Texts) -> None:
    by_release = {1: hard_texts[1]}
    begun_s = time.monotonic()
    with streams(hard_site, by_release) as load:
        options = ("--mode", "shadow", "--max-copies", "8")
        running = hard_site.start(hard_site.candidate(seed=2), steps="10,100", options=options)
        run_out(running, load)
    note("shadow, copies of 10, 100 %", load, begun_s)


class Switched:
    """A rollout without a controller, that a test switches on and off."""

    def __init__(self, path: Path) -> None:
        self._path = path
        plan = Plan(
            mode=Mode.SHADOW, candidate=2, stable=1, release={}, salt="s", shares=(1.0,), lease_s=1.0, max_copies=4
        )
        with Store(path) as store:
            self._number = store.begin("live", plan.text(), why="").id
        self.num_pairs = 0
        self.front = RolloutApi(path, self._number, "", self._merge, host="127.0.0.1", port=0)
        self.switch(is_on=False)

    def switch(self, *, is_on: bool) -> None:
        with Store(self._path) as store:
            store.enter(self._number, Phase.RUNNING if is_on else Phase.STARTING, why="", step=0)

    def _merge(self, evidence: object, outcomes: Sequence[Outcome], *, at_s: float | None) -> dict[str, object]:
        del evidence, at_s
        self.num_pairs += sum(one.arm == "candidate" and not one.error for one in outcomes)
        return {}


async def ttfts_by_window(url: str, shadow: Switched) -> dict[bool, list[list[float]]]:
    """Return the TTFT in milliseconds of each request of windows with and without shadow requests, which take turns."""
    found: dict[bool, list[list[float]]] = defaultdict(list)
    async with RoutedClient(url, shadow.front.url) as client:
        for window in range(NUM_WINDOWS):
            is_on = window % 2 == 1
            shadow.switch(is_on=is_on)
            await asyncio.sleep(1.5)  # until clients have heard of it, and the window before has ended
            until_s = time.monotonic() + WINDOW_S
            streams = (one_stream(client, random.Random(100 * window + n), until_s) for n in range(12))
            found[is_on].append([ttft for stream in await asyncio.gather(*streams) for ttft in stream])
    return found


async def one_stream(client: RoutedClient, rng: random.Random, until_s: float) -> list[float]:
    found = []
    while time.monotonic() < until_s:
        sent_s, first_s = time.monotonic(), None
        async for chunk in client.generate(request(rng.choice(PROMPTS), max_tokens=HARD_TOKENS)):
            first_s = first_s or (time.monotonic() if chunk.text else None)
        assert first_s is not None
        found.append(1000 * (first_s - sent_s))
        await asyncio.sleep(rng.expovariate(2.0))
    return found


@pytest.mark.parametrize("engine", [{}, {"step_ms": 10 * HARD["step_ms"]}], ids=["as fast", "ten times as slow"])
def test_what_a_shadow_costs_its_users(hard_site: Site, tmp_path: Path, engine: dict[str, Any]) -> None:
    stable = next(each for each in hard_site.served()["releases"] if each["release"] == 1)
    hard_site.control.ask("add", release={**stable, "release": 2, "engine": {**stable["engine"], **engine}})
    shadow = Switched(tmp_path / "switched.sqlite")
    found = asyncio.run(ttfts_by_window(hard_site.server.url, shadow))
    assert shadow.num_pairs > 50
    FOUND.setdefault("shadow_cost", []).append(
        {
            "candidate": "ten times as slow" if engine else "as fast",
            "pairs": shadow.num_pairs,
            "ttft_ms": {
                "with copies" if is_on else "without": {
                    "median": statistics.median(values := [value for window in windows for value in window]),
                    "p99": statistics.quantiles(values, n=100)[98],
                    "num": len(values),
                }
                for is_on, windows in found.items()
            },
            "ratio_p50": ratio_of_quantiles(found[True], found[False], 0.5),
            "ratio_p99": ratio_of_quantiles(found[True], found[False], 0.99),
        }
    )
