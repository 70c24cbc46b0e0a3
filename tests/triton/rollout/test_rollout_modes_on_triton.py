# SPDX-License-Identifier: Apache-2.0
"""Shadow, A/B test and two servers on the real server, under 32 streams whose every answer is checked."""

import csv
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_site import DEMO_MODEL, Site, Texts, serving
from running_server import RunningServer
from streams_under_change import PAUSE_S, RoutedLoad, answers


def stable_serves_alone(site: Site, pid: int) -> None:
    served = site.served()
    assert (served["release"], served["canary"], served["engine_pids"]) == (1, None, {"1": pid})


@pytest.mark.parametrize(
    ("seed", "num_same"),
    [(1, 1.0), pytest.param(2, 0.0, marks=pytest.mark.soak)],
    ids=["same text", "another text"],
)
def test_a_shadow_compares_and_nobody_gets_its_answers(
    shared_site: Site, seed: int, num_same: float, texts: Texts
) -> None:
    by_release = {1: texts[1]}
    pid = shared_site.served()["engine_pids"]["1"]
    with RoutedLoad(shared_site.server.url, shared_site.split_url, by_release, num_streams=16, pause_s=PAUSE_S) as load:
        options = ("--mode", "shadow", "--max-copies", "8")
        running = shared_site.start(shared_site.candidate(seed=seed), steps="100", options=options)
        text = shared_site.end_of(running)
    assert running.returncode == 0, text
    assert (load.wrong, load.refused) == ([], [])
    stable_serves_alone(shared_site, pid)
    assert shared_site.status()["phase"] == "ended"
    compared = json.loads(shared_site.done("report", "--json"))["texts"]
    assert compared["num"] >= 50
    assert compared["same"] == num_same
    assert "copies of greedy requests" in shared_site.done("report")


@pytest.mark.parametrize(
    "engine",
    [{"fault": {"kind": "crash", "after_requests": 80}}, pytest.param({"step_ms": 80.0}, marks=pytest.mark.soak)],
    ids=["crashes under load", "four times as slow"],
)
def test_a_bad_release_in_the_shadow_costs_no_user_anything(
    shared_site: Site, engine: dict[str, Any], texts: Texts
) -> None:
    by_release = {1: texts[1]}
    pid = shared_site.served()["engine_pids"]["1"]
    with RoutedLoad(shared_site.server.url, shared_site.split_url, by_release, num_streams=16, pause_s=PAUSE_S) as load:
        options = ("--mode", "shadow", "--max-copies", "16")
        running = shared_site.start(shared_site.candidate(**engine), steps="100", options=options)
        text = shared_site.end_of(running)
        load.wait_for(1, 64)
    assert running.returncode == 1, text
    assert (load.wrong, load.refused) == ([], [])
    stable_serves_alone(shared_site, pid)


def test_three_arms_until_a_person_takes_one(site: Site, texts: Texts) -> None:
    by_release = texts
    with RoutedLoad(site.server.url, site.split_url, by_release, num_streams=16, pause_s=PAUSE_S) as load:
        candidates = [site.candidate(seed=seed) for seed in (2, 3)]
        # The keys are known to these clients alone.
        options = ("--mode", "ab", "--shares", "50,25,25", "--max-requests", "60", "--split", "clients")
        running = site.begin(*candidates, steps="", options=options)
        site.wait_for_phase("held")
        found = json.loads(site.done("report", "--price-per-gpu-hour", "2", "--assignments", "log.csv", "--json"))
        page = site.done("report")
        site.done("promote", "--release", "3", "--why", "half the price")
        text = site.end_of(running)
    assert running.returncode == 0, text
    assert (load.wrong, load.refused) == ([], [])
    assert min(load.num_answers[release] for release in (1, 2, 3)) > 60
    served = site.served()
    assert (served["release"], served["canary"], list(served["engine_pids"])) == (3, None, ["3"])
    assert found["mismatch"] == ""
    assert found["on_several_arms"] == 0
    assert all(row["usd_per_million_tokens"] > 0 for row in found["arms"].values())
    assert "## release 3 against the stable release" in page
    with (site.folder / "log.csv").open() as file:
        keys = [row["unit"] for row in csv.DictReader(file) if row["unit"]]
    assert len(keys) == len(set(keys)) == 32


@pytest.mark.soak
def test_an_arm_that_dies_ends_the_test_and_no_other_release(shared_site: Site, texts: Texts) -> None:
    by_release = {1: texts[1]}
    pid = shared_site.served()["engine_pids"]["1"]
    with RoutedLoad(shared_site.server.url, shared_site.split_url, by_release, num_streams=16, pause_s=PAUSE_S) as load:
        candidates = [shared_site.candidate(), shared_site.candidate(fault={"kind": "crash", "after_requests": 120})]
        running = shared_site.start(*candidates, steps="", options=("--mode", "ab"))
        text = shared_site.end_of(running)
        load.wait_for(1, 64)
    assert running.returncode == 1, text
    assert "ended or was started again" in shared_site.status()["reason"]
    stable_serves_alone(shared_site, pid)
    # A stream on the engine that dies is told so; nothing else fails.
    assert all("engine" in one or "UNAVAILABLE" in one for one in [*load.wrong, *load.refused]), load.wrong


@pytest.fixture
def second(tmp_path: Path) -> Iterator[RunningServer]:
    with serving(tmp_path / "second") as server:
        yield server


@pytest.mark.soak
def test_two_servers_where_one_has_no_room_for_both(site: Site, second: RunningServer, texts: Texts) -> None:
    by_release = {seed: texts[seed] for seed in (1, 2)}
    pid = site.served()["engine_pids"]["1"]
    folder = second.folder / "build" / "live"
    with RoutedLoad(site.server.url, site.split_url, by_release, pause_s=PAUSE_S) as load:
        running = site.start(site.candidate(seed=2), options=("--second-server", str(folder), "--apart"))
        while running.poll() is None:
            pids = site.served()["engine_pids"]
            assert pids in ({"1": pid}, {}, {"2": pids.get("2")}), "never both"
            time.sleep(0.3)
        text = site.end_of(running)
        load.wait_for(2, 64)
    assert running.returncode == 0, text
    assert (load.wrong, load.refused) == ([], [])
    served = site.served()
    assert (served["release"], served["canary"], list(served["engine_pids"])) == (2, None, ["2"])
    assert answers(site.server.url, "ensemble") == by_release[2]


def test_two_servers_and_a_release_that_does_not_load_on_either(
    site: Site, second: RunningServer, texts: Texts
) -> None:
    by_release = {1: texts[1]}
    pid = site.served()["engine_pids"]["1"]
    folder = second.folder / "build" / "live"
    with RoutedLoad(site.server.url, site.split_url, by_release, pause_s=PAUSE_S) as load:
        running = site.start(
            site.candidate(fault={"kind": "crash"}), options=("--second-server", str(folder), "--apart")
        )
        text = site.end_of(running)
    assert running.returncode == 1, text
    assert (load.wrong, load.refused) == ([], [])
    stable_serves_alone(site, pid)


def test_the_memory_plan_says_whether_a_second_server_is_needed(site: Site, second: RunningServer) -> None:
    folder = second.folder / "build" / "live"
    running = site.begin(site.candidate(seed=1), steps="50,100", options=("--second-server", str(folder)))
    assert site.status()["plan"]["second_server"] == ""
    site.done("abort")
    text = site.end_of(running)
    assert "the second one is not needed" in text
    [stable] = [each for each in site.served()["releases"] if each["release"] == 1]
    large = {"provider": "openvino", "dir": str(DEMO_MODEL), "max_seq_len": 512, "num_kv_blocks": 10**9}
    why_not = site.control.ask("room", release={**stable, "release": 9, "engine": large})["why_not"]
    assert "GiB are free" in str(why_not)
