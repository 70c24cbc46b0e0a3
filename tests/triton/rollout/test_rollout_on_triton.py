# SPDX-License-Identifier: Apache-2.0
"""`trireme rollout` on the real server, under 32 streams: promoted or rolled back, whoever dies on the way."""

import contextlib
import random
import re
import shutil
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
import pytest
from rollout_site import DEMO_MODEL, GATE, HARD_TOKENS, PATIENCE_S, ROLLED_OUT, WIDE_OPEN, Site, Texts, said_by_engine
from running_server import RunningServer, deployment_text
from streams_under_change import PAUSE_S, RoutedLoad, answers

from benchmarks.support.report import environment, write_result


def test_a_canary_up_to_100_percent_under_32_streams(site: Site, texts: Texts) -> None:
    by_release = {seed: texts[seed] for seed in (1, 2)}
    stable_pid = site.served()["engine_pids"]["1"]
    with RoutedLoad(site.server.url, site.split_url, by_release, pause_s=PAUSE_S) as load:
        running = site.start(site.candidate(seed=2))
        while running.poll() is None and "1" in (pids := site.served()["engine_pids"]):
            assert pids["1"] == stable_pid
            time.sleep(0.5)
        text = site.end_of(running)
        time.sleep(1)
    assert running.returncode == 0, text
    assert (load.wrong, load.refused) == ([], [])
    assert load.num_answers[2] > 100
    served = site.served()
    assert (served["release"], served["canary"], list(served["engine_pids"])) == (2, None, ["2"])
    assert site.status()["phase"] == "promoted"


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ({"fault": {"kind": "crash"}}, "could not be started"),
        ({"fault": {"kind": "crash", "after_requests": 80}}, "ended or was started again"),
        ({"step_ms": 80.0}, "TPOT|TTFT|end to end|end-to-end"),
        *(
            pytest.param({"fault": fault, "watchdog_s": 2.0}, "could not be started", marks=pytest.mark.soak)
            for fault in ({"kind": "crash", "after_requests": 0}, {"kind": "hang", "after_requests": 0})
        ),
    ],
    ids=[
        "crashes while it loads",
        "crashes under load",
        "four times as slow",
        "crashes on its first request",
        "hangs on its first request",
    ],
)
def test_a_bad_release_is_rolled_back_with_a_reason(
    shared_site: Site, engine: dict[str, Any], reason: str, texts: Texts
) -> None:
    by_release = {1: texts[1]}
    by_release[2] = by_release[1]  # the same seed
    stable_pid = shared_site.served()["engine_pids"]["1"]
    with RoutedLoad(shared_site.server.url, shared_site.split_url, by_release, num_streams=16, pause_s=PAUSE_S) as load:
        running = shared_site.start(shared_site.candidate(**engine))
        text = shared_site.end_of(running)
        assert running.returncode == 1, text
    found = shared_site.status()
    assert found["phase"] == "rolled_back"
    assert re.search(reason, found["reason"]), text
    served = shared_site.served()
    assert (served["release"], served["canary"], served["engine_pids"]) == (1, None, {"1": stable_pid})
    # A stream on an engine that dies is told so; nothing else fails.
    assert all("engine" in one or "UNAVAILABLE" in one for one in [*load.wrong, *load.refused]), load.wrong


def test_the_default_gate_rolls_back_a_release_whose_answers_loop(shared_site: Site) -> None:
    max_tokens = 80  # a loop is six times the same
    by_release = {1: said_by_engine(1, max_tokens=max_tokens), 2: said_by_engine(1, max_tokens=max_tokens, mode="echo")}
    stable_pid = shared_site.served()["engine_pids"]["1"]
    with RoutedLoad(
        shared_site.server.url, shared_site.split_url, by_release, num_streams=16, max_tokens=max_tokens
    ) as load:
        text = shared_site.end_of(shared_site.start_with_default_gate(shared_site.candidate(mode="echo")))
    found = shared_site.status()
    assert found["phase"] == "rolled_back", text
    assert "loop" in found["reason"]
    assert found["plan"]["gate"] == {}, "the default settings, none changed"
    assert load.num_answers[2] > 0
    assert (load.wrong, load.refused) == ([], [])
    served = shared_site.served()
    assert (served["release"], served["canary"], served["engine_pids"]) == (1, None, {"1": stable_pid})


def test_a_corrupt_engine_is_rolled_back_and_the_real_model_serves_on(tmp_path: Path) -> None:
    corrupt = tmp_path / "corrupt"
    shutil.copytree(DEMO_MODEL, corrupt)
    weights = corrupt / "openvino_model.bin"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    engine = {"provider": "openvino", "dir": str(DEMO_MODEL), "max_seq_len": 512, "num_kv_blocks": 64}
    with RunningServer(deployment_text("live", engine=engine, endpoints=ROLLED_OUT), tmp_path / "server") as server:
        site = Site(server)
        before = answers(server.url, "ensemble")
        running = site.start(site.candidate(dir=str(corrupt)))
        text = site.end_of(running)
        assert running.returncode == 1, text
        assert "could not be started" in site.status()["reason"]
        assert answers(server.url, "ensemble") == before
        assert (site.served()["release"], list(site.served()["engine_pids"])) == (1, ["1"])
        assert server.is_ready()


def one_release_serves_all(site: Site) -> None:
    served = site.served()
    assert served["canary"] is None
    assert list(served["engine_pids"]) == [str(served["release"])]
    found = site.status()
    stays = {"promoted": "candidate", "rolled_back": "stable"}[found["phase"]]
    assert served["release"] == found["plan"][stays]


def kill_the_rollout(site: Site, most: int, seed: int, *, engine_seed: int = 2) -> int:
    """Kill its process at random moments, and go on each time; return the number of kills until it had ended."""
    rng, kills = random.Random(seed), 0
    running = site.begin(site.candidate(seed=engine_seed))
    while kills < most:
        time.sleep(rng.uniform(0.0, 6.0))
        if running.poll() is not None:
            break
        running.send_signal(signal.SIGKILL)
        running.communicate()
        kills += 1
        running = site.go_on()
    site.end_of(running)
    return kills


def test_killed_at_any_moment_a_rollout_goes_on(site: Site, texts: Texts) -> None:
    by_release = {seed: texts[seed] for seed in (1, 2)}
    with RoutedLoad(site.server.url, site.split_url, by_release, pause_s=PAUSE_S) as load:
        kills = kill_the_rollout(site, most=2, seed=1)
        time.sleep(1)
    assert kills == 2
    assert (load.wrong, load.refused) == ([], [])
    one_release_serves_all(site)


def kill_triton(site: Site, most: int, seed: int, *, engine_seed: int = 2) -> int:
    """Kill the server at random moments of a rollout; return how often it was killed before that ended."""
    rng, kills = random.Random(seed), 0
    running = site.begin(site.candidate(seed=engine_seed))
    for _ in range(most):
        time.sleep(rng.uniform(0.0, 8.0))
        if running.poll() is not None:
            break
        with contextlib.suppress(ValueError, psutil.NoSuchProcess):  # it is being started again
            victim = site.server.tritonserver()
            victim.kill()
            kills += 1
            victim.wait(30)  # what is about to die may still say that it is ready
    site.end_of(running)
    deadline_s = time.monotonic() + PATIENCE_S
    while not site.server.is_ready():  # a rollout may have ended before the last kill
        assert time.monotonic() < deadline_s, site.server.log()[-2000:]
        time.sleep(0.1)
    return kills


def test_triton_killed_while_a_rollout_runs(site: Site, texts: Texts) -> None:
    by_release = {seed: texts[seed] for seed in (1, 2)}
    # Its streams end with their server.
    with RoutedLoad(site.server.url, site.split_url, by_release, num_streams=8) as load:
        assert kill_triton(site, most=1, seed=3) == 1
        one_release_serves_all(site)
        load.wait_for(2 if site.status()["phase"] == "promoted" else 1, 16)
    assert load.mixed == []


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thirty_kills_of_the_rollout_and_ten_of_triton(hard_site: Site, hard_texts: Texts) -> None:
    by_seed = {seed: hard_texts[seed] for seed in (1, 2)}
    where, found, serving = environment(), [], 1
    for what, kill, most, least, num_streams in (
        ("the rollout's process", kill_the_rollout, 3, 30, 32),
        ("Triton", kill_triton, 2, 10, 8),
    ):
        kills, ends = 0, Counter[str]()
        urls = hard_site.server.url, hard_site.split_url
        with RoutedLoad(*urls, by_seed, num_streams=num_streams, max_tokens=HARD_TOKENS, pause_s=0.0) as load:
            while kills < least:
                number = ends.total()
                candidate = 2 - number % 2
                kills += kill(hard_site, most, 10 + number, engine_seed=candidate)
                one_release_serves_all(hard_site)
                phase = hard_site.status()["phase"]
                ends[phase] += 1
                serving = candidate if phase == "promoted" else serving
                load.wait_for(serving, 16)  # not sooner: what was killed last may be on its way back
                assert load.mixed == []
        counts = {"answers": load.num_answers.total(), "failed": len(load.wrong), "refused": len(load.refused)}
        found.append({"what": what, "kills": kills, "ends": ends, **counts, "mixed": len(load.mixed)})
        assert kill is kill_triton or (load.wrong, load.refused) == ([], [])
        assert load.num_answers.total() > 500
    result = {"benchmark": "rollout_kills", "gate": WIDE_OPEN, "gate_settings": GATE, "kills": found}
    write_result("rollout_kills", {**result, "environment": where})
