# SPDX-License-Identifier: Apache-2.0
"""Stubs, Triton and the rollout's process are killed at random, and each request of the candidate counts once."""

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest
from rollout_site import PATIENCE_S, Site, Texts
from streams_under_change import Streams

from benchmarks.support.report import environment, write_result
from clients.rollout.records.store import Store

_NUM_KILLS = 30
_KILLS_OF_THE_ROLLOUT = 10
_KILLED = ("the rollout's process", "Triton", "the stub of ensemble", "the stub of tensorrt_llm_bls")


class Killing:
    """Rollouts that stay at their first share until something dies.

    One whose own process is killed goes on; the candidate's engine ends with a stub or Triton, and the rollout with it.

    Attributes:
        kills: number of kills, by what was killed.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self.kills: dict[str, int] = dict.fromkeys(_KILLED, 0)
        self.num_rollouts = 0
        self._begin()

    def _begin(self) -> None:
        self._running = self._site.begin(self._site.candidate(seed=2), options=("--step-requests", "1000000"))
        self._site.wait_for_phase("running")
        self.num_rollouts += 1

    def kill(self, what: str) -> None:
        """Kill something, and go on once it is back."""
        if what == _KILLED[0]:
            self._running.send_signal(signal.SIGKILL)
            self._running.communicate()
            self._running = self._site.go_on()
        elif self._killed(self._victim(what)):
            text = self._site.end_of(self._running)
            assert self._running.returncode == 1, text
            self._begin()
        else:
            return
        self.kills[what] += 1

    def end(self) -> subprocess.Popen[str]:
        """Abort the rollout, and return its process."""
        self._site.done("abort", "--why", "it was only to count")
        self._site.end_of(self._running)
        return self._running

    def _victim(self, what: str) -> Callable[[], psutil.Process]:
        server = self._site.server
        return server.tritonserver if what == "Triton" else lambda: server.stub(what.removeprefix("the stub of "))

    def _killed(self, find: Callable[[], psutil.Process]) -> bool:
        with contextlib.suppress(ValueError, KeyError, psutil.NoSuchProcess):  # it is being started again
            victim = find()
            victim.kill()
            victim.wait(30)
            return True
        return False


def counted(site: Site) -> tuple[int, int]:
    """Return the requests that all rollouts have counted, of the candidate and the baseline."""
    found = [0, 0]
    with Store(site.folder / "build" / "live" / "rollouts.sqlite") as store:
        for rollout in store.rollouts():
            evidence: Any = store.evidence(rollout.id, 0) or {}
            for arm, num in enumerate(evidence.get("num_requests", (0, 0))):
                found[arm] += num
    return found[0], found[1]


def count_under_kills(site: Site, texts: Texts, num_kills: int, seed: int) -> dict[str, Any]:
    """Kill at random, and return what clients saw and what was counted."""
    rng = random.Random(seed)
    order = [_KILLED[number % len(_KILLED)] for number in range(num_kills)]
    rng.shuffle(order)
    killing = Killing(site)
    with Streams(site.server.url, {release: texts[release] for release in (1, 2)}, num_streams=12) as load:
        load.wait_for(2, 20, timeout_s=PATIENCE_S)
        for what in order:
            time.sleep(rng.uniform(0.0, 3.0))
            killing.kill(what)
            load.wait_for(2, 20, timeout_s=PATIENCE_S)
        while sum(killing.kills.values()) < num_kills:  # some found nobody to kill
            killing.kill(_KILLED[0])
            load.wait_for(2, 20, timeout_s=PATIENCE_S)
    deadline_s = time.monotonic() + PATIENCE_S
    while counted(site)[0] < load.num_answers[2] and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(2)  # what came twice would come now
    candidate, baseline = counted(site)
    assert killing.end().returncode == 1
    return {
        "kills": killing.kills,
        "rollouts": killing.num_rollouts,
        "answers_of_the_candidate": load.num_answers[2],
        "counted_of_the_candidate": candidate,
        "counted_of_the_baseline": baseline,
        "answers": load.num_answers.total(),
        "cut": len(load.wrong),
        "refused": len(load.refused),
        "mixed": len(load.mixed),
        "served_at_the_end": site.served()["release"],
    }


def check(found: dict[str, Any], num_kills: int) -> None:
    assert sum(found["kills"].values()) == num_kills
    # Whoever had a whole answer is counted. Of a request that was cut, the outcome may have been written before.
    missing = found["counted_of_the_candidate"] - found["answers_of_the_candidate"]
    assert 0 <= missing <= found["cut"] + found["refused"]
    assert found["answers_of_the_candidate"] >= 20 * num_kills
    assert (found["mixed"], found["served_at_the_end"]) == (0, 1)


def counted_by_metrics(site: Site) -> dict[str, int]:
    """Return how many requests each release got since Triton started, and how many of the candidate's it was not ready
    for: the stable release answered those, and they say nothing of either.
    """

    def count(name: str, **labels: str) -> int:
        try:
            return int(site.server.metric(name, model="ensemble", **labels))
        except AssertionError:
            return 0  # Triton has no sample of what never was

    return {
        "candidate": count("trireme_split_requests_total", arm="candidate"),
        "baseline": count("trireme_split_requests_total", arm="baseline"),
        "not_ready": count("trireme_split_fallbacks_total", reason="not_ready"),
        "not_taken": count("trireme_split_fallbacks_total"),
    }


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_outcomes_are_as_many_as_the_servers_metrics_say_though_the_rollout_is_killed(site: Site, texts: Texts) -> None:
    where = environment()
    killing = Killing(site)
    rng = random.Random(3)
    with Streams(site.server.url, {release: texts[release] for release in (1, 2)}, num_streams=12) as load:
        for _ in range(_KILLS_OF_THE_ROLLOUT):
            load.wait_for(2, 20, timeout_s=PATIENCE_S)
            time.sleep(rng.uniform(0.0, 3.0))
            killing.kill(_KILLED[0])
        load.wait_for(2, 20, timeout_s=PATIENCE_S)

    def is_equal() -> bool:
        metrics = counted_by_metrics(site)
        return counted(site) == (metrics["candidate"] - metrics["not_ready"], metrics["baseline"])

    deadline_s = time.monotonic() + PATIENCE_S
    while not is_equal() and time.monotonic() < deadline_s:
        time.sleep(0.1)
    time.sleep(2)  # what came twice would come now
    (candidate, baseline), metrics = counted(site), counted_by_metrics(site)
    assert killing.end().returncode == 1
    assert (load.wrong, load.refused) == ([], [])
    assert is_equal(), (candidate, baseline, metrics)
    assert candidate == load.num_answers[2]
    found = {"outcomes": {"candidate": candidate, "baseline": baseline}, "metrics": metrics}
    write_result(
        "outcomes_and_metrics",
        {"benchmark": "outcomes_and_metrics", "kills": killing.kills[_KILLED[0]], **found, "environment": where},
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_thirty_kills_lose_no_outcome_and_count_none_twice(site: Site, texts: Texts) -> None:
    where = environment()
    found = count_under_kills(site, texts, num_kills=_NUM_KILLS, seed=2)
    check(found, _NUM_KILLS)
    write_result("outcomes_under_kills", {"benchmark": "outcomes_under_kills", **found, "environment": where})
