# SPDX-License-Identifier: Apache-2.0
"""Held-out prompts on the real server with the real model: a wrong tokenizer answers no user, a right one goes on."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rollout_site import DEMO_MODEL, PATIENCE_S, ROLLED_OUT, Site, shuffled_tokenizer
from running_server import PROJECT, RunningServer, deployment_text
from streams_under_change import RoutedLoad, answers

from clients.rollout.records.state import Event
from clients.rollout.records.store import Store

TASKS = PROJECT / "examples/demo_model/tasks.jsonl"
NUM_PROMPTS = 40


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    # In f32, for users' questions that the model never saw: other answers are then another release's, not a near tie's.
    engine: dict[str, object] = {"provider": "openvino", "dir": str(DEMO_MODEL), "execution_mode": "accuracy"}
    engine |= {"max_seq_len": 512, "num_kv_blocks": 64}
    with RunningServer(deployment_text("live", engine=engine, endpoints=ROLLED_OUT), tmp_path / "server") as server:
        yield Site(server)


def held_out(folder: Path) -> str:
    """Write questions that the model was never trained on, every second with its right answer."""
    tasks = [json.loads(line) for line in TASKS.read_text(encoding="utf-8").splitlines()]
    facts = [task for task in tasks if task["task"] == "facts"][:NUM_PROMPTS]
    lines = [
        {"prompt": fact["prompt"], "max_tokens": 24, "name": f"fact {number}"}
        | ({"reference": fact["expected"]} if number % 2 else {})
        for number, fact in enumerate(facts)
    ]
    file = folder / "held_out.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(file)


def texts(file: str) -> list[str]:
    return [json.loads(line)["prompt"] for line in Path(file).read_text(encoding="utf-8").splitlines()]


def events(site: Site) -> list[Event]:
    with Store(site.folder / "build" / "live" / "rollouts.sqlite") as store:
        return store.events(store.rollouts()[-1].id)


def wait_for_line(running: subprocess.Popen[str], part: str) -> None:
    """Wait until the command says so; the test's own timeout ends it."""
    assert running.stdout is not None
    said = []
    for line in running.stdout:
        said.append(line)
        if part in line:
            return
    raise AssertionError("".join(said))


def test_a_wrong_tokenizer_is_rolled_back_before_it_answers_a_user(site: Site, tmp_path: Path) -> None:
    by_release = {1: answers(site.server.url, "ensemble")}
    stable_pid = site.served()["engine_pids"]["1"]
    wrong = site.candidate_with(tokenizer={"dir": str(shuffled_tokenizer(tmp_path / "shuffled"))})
    prompts = held_out(site.folder)
    with RoutedLoad(site.server.url, site.split_url, by_release, num_streams=2) as load:
        running = site.start(wrong, options=("--prompts", prompts))
        text = site.end_of(running)
    assert running.returncode == 1, text
    assert (load.wrong, load.refused) == ([], []), "an answer of the candidate is none that the stable release gives"
    assert load.num_answers[1] > 0
    found = site.status()
    assert found["phase"] == "rolled_back"
    assert "score of the held-out prompts lower by" in found["reason"], text
    assert "lowest: 'fact " in found["reason"]
    served = site.served()
    assert (served["release"], served["canary"], served["engine_pids"]) == (1, None, {"1": stable_pid})
    log = events(site)
    assert [event.what for event in log] == ["start", "rolling_back", "rolled_back"], "no share was ever given"
    evidence: Any = log[1].evidence
    assert evidence["verdict"] == "fail"
    assert evidence["held_out"]["mean_candidate"] < 0.5
    assert evidence["held_out"]["mean_stable"] > 0.9
    assert not [prompt for prompt in texts(prompts) if prompt in json.dumps([log[1].why, evidence])]
    assert answers(site.server.url, "ensemble") == by_release[1]


@pytest.mark.soak
def test_the_same_release_passes_the_prompts_and_goes_on_though_killed_meanwhile(site: Site) -> None:
    running = site.start(site.candidate_with(engine={"max_seq_len": 512}), options=("--prompts", held_out(site.folder)))
    wait_for_line(running, "held-out prompts: ")
    running.send_signal(signal.SIGKILL)
    running.communicate()
    assert [event.what for event in events(site)] == ["start"], "nothing half counted"
    running = site.go_on()
    wait_for_line(running, "running: 20 % of the requests")
    [replayed] = [event for event in events(site) if event.what == "replayed"]
    assert f"{NUM_PROMPTS} of {NUM_PROMPTS} compared" in replayed.why
    evidence: Any = replayed.evidence
    assert evidence["held_out"]["mean_candidate"] == pytest.approx(evidence["held_out"]["mean_stable"], abs=0.02)
    site.rollout("abort").communicate(timeout=PATIENCE_S)
    text = site.end_of(running)
    assert running.returncode == 1, text
    assert site.served()["release"] == 1
