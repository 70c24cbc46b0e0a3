# SPDX-License-Identifier: Apache-2.0
"""Canaries by the default gate under 32 streams of clients that know nothing of it: good ones pass, bad ones do not."""

import json
import math
import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from every_client import PROGRAMS, STREAMS, Answer, EveryClient, by_client, releases_of
from rollout_site import Site, Texts, said_by_engine, serving, shuffled_tokenizer
from streams_under_change import MAX_TOKENS

from benchmarks.support.report import environment, write_result
from clients.rollout.records.store import Store

pytestmark = [pytest.mark.soak, pytest.mark.quiet, pytest.mark.timeout(3600)]

_STEP_MS = 50.0  # beside which what a busy machine adds to an arm is little
_PATIENCE_S = 1800.0
_SEEN_S = 1.0  # after a share has changed: requests that began before are still on their way
FOUND: dict[str, Any] = {"benchmark": "every_client", "gate": "default", "engine": "simulated", "rollouts": []}
WRONG_TOKENIZER = "wrong tokenizer, with 40 held-out prompts"
_LOOP_TOKENS = 80  # a loop is six times the same
BAD: dict[str, tuple[dict[str, Any], str]] = {
    # A prompt's prefill is part of a step that others' tokens wait for, and a first token waits for a step.
    "prefill six times as slow": ({"prefill_us_per_token": 3000.0}, "TTFT|TPOT"),
    "decode a tenth slower": ({"step_ms": 1.1 * _STEP_MS}, "TTFT|TPOT"),
    "errors in 3 % of the requests": ({"fault": {"kind": "error", "share": 0.03, "after_requests": 150}}, "errors"),
    "crashes": ({"fault": {"kind": "crash", "after_requests": 150}}, "ended or was started again|errors"),
    "hangs": ({"fault": {"kind": "hang", "after_requests": 150}, "watchdog_s": 5.0}, "ended or was started|errors"),
    "garbled: answers loop": ({"mode": "echo"}, "loop"),
}


@pytest.fixture(scope="module", autouse=True)
def result() -> Iterator[None]:
    """Write the result once all tests have passed."""
    where = environment()
    yield
    assert len(FOUND["rollouts"]) == 2 + len(BAD), "figures of a part are no result"
    write_result("every_client", {**FOUND, "streams": STREAMS | PROGRAMS, "environment": where})


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Site]:
    with serving(tmp_path / "server", step_ms=_STEP_MS, prefill_us_per_token=500.0) as server:
        yield Site(server)


def test_a_good_release_goes_from_1_to_100_percent_for_every_client(served: Site, tmp_path: Path, texts: Texts) -> None:
    by_release = {release: texts[release] for release in (1, 2)}
    begun_s = time.monotonic()
    with EveryClient(served.server, tmp_path / "load") as load:
        time.sleep(5)  # all are there before the first share
        running = served.rollout("start", served.candidate(seed=2), "--port", str(served.port),
                                 "--steps", "1,5,25,50,100")  # fmt: skip
        text = served.end_of(running, patience_s=_PATIENCE_S)
        ended_s = time.time()
        time.sleep(15)
    assert running.returncode == 0, text
    assert (served.status()["phase"], served.status()["plan"]["gate"]) == ("promoted", {})
    wrong = [answer for answer, release in releases_of(load.answers, by_release) if release is None]
    assert wrong == []
    shares = shares_in_force(served)
    assert [share for share, _, _ in shares] == [0.01, 0.05, 0.25, 0.5]
    met: dict[str, dict[str, Any]] = {}
    for share, begin_s, end_s in shares:
        for client, found in by_client(load.answers, by_release, begin_s + _SEEN_S, end_s).items():
            met.setdefault(client, {})[f"{share:g}"] = {"candidate": found[2], "of": found.total()}
            assert abs(found[2] - share * found.total()) <= 5 * math.sqrt(share * (1 - share) * found.total()) + 1
    assert set(met) == set(STREAMS | PROGRAMS)
    after = by_client(load.answers, by_release, ended_s + _SEEN_S, math.inf)
    assert {client: set(found) for client, found in after.items()} == {client: {2} for client in STREAMS | PROGRAMS}
    note("as good", load.answers, begun_s, served, met=met)


def test_a_wrong_tokenizer_is_rolled_back_before_a_client_meets_it(served: Site, tmp_path: Path, texts: Texts) -> None:
    prompts = tmp_path / "held_out.jsonl"
    prompts.write_text(
        "".join(json.dumps({"prompt": f"Count to {number}", "max_tokens": 24}) + "\n" for number in range(40))
    )
    begun_s = time.monotonic()
    with EveryClient(served.server, tmp_path / "load") as load:
        running = served.rollout(
            "start", served.candidate_with(tokenizer={"dir": str(shuffled_tokenizer(tmp_path / "shuffled"))}),
            "--port", str(served.port), "--steps", "20,50,100", "--prompts", str(prompts),
        )  # fmt: skip
        text = served.end_of(running, patience_s=_PATIENCE_S)
        time.sleep(15)
    assert running.returncode == 1, text
    found = served.status()
    assert (found["phase"], found["plan"]["gate"]) == ("rolled_back", {})
    assert "score of the held-out prompts" in found["reason"], found["reason"]
    assert {release for _, release in releases_of(load.answers, {1: texts[1]})} == {1}
    note(WRONG_TOKENIZER, load.answers, begun_s, served)


@pytest.mark.parametrize("name", BAD)
def test_a_bad_release_is_rolled_back_by_the_default_gate(served: Site, tmp_path: Path, name: str) -> None:
    engine, reason = BAD[name]
    max_tokens = _LOOP_TOKENS if "mode" in engine else MAX_TOKENS
    begun_s = time.monotonic()
    with EveryClient(served.server, tmp_path / "load", max_tokens=max_tokens) as load:
        running = served.rollout(
            "start", served.candidate(**engine), "--port", str(served.port), "--steps", "20,50,100"
        )
        text = served.end_of(running, patience_s=_PATIENCE_S)
        ended_s = time.time()
        time.sleep(15)
    assert running.returncode == 1, text
    found = served.status()
    assert (found["phase"], found["plan"]["gate"]) == ("rolled_back", {})
    assert re.search(reason, found["reason"]), found["reason"]
    after = [answer for answer in load.answers if answer.at_s > ended_s + _SEEN_S]
    assert [
        answer
        for answer, release in releases_of(after, {1: said_by_engine(1, max_tokens=max_tokens)})
        if release is None
    ] == []
    # Only what a candidate had begun, and could not end, failed: the stable release answers for it before that.
    failed = [answer for answer in load.answers if answer.error]
    assert not failed or engine.get("fault", {}).get("kind") in ("crash", "hang"), failed
    note(name, load.answers, begun_s, served)


def shares_in_force(site: Site) -> list[tuple[float, float, float]]:
    """Return each share with the times from which and until which it held."""
    with Store(site.folder / "build" / "live" / "rollouts.sqlite") as store:
        [rollout] = store.rollouts()
        events = store.events(rollout.id)
    changes = [
        (event.at, float(told[1]) / 100 if (told := re.match(r"([\d.]+) % of the requests", event.why)) else None)
        for event in events
        if event.what in ("running", "promoting")
    ]
    return [(share, begin_s, end_s) for (begin_s, share), (end_s, _) in pairwise(changes) if share is not None]


def note(name: str, answers: list[Answer], begun_s: float, site: Site, **more: object) -> None:
    status = site.status()
    FOUND["rollouts"].append(
        {
            "name": name,
            "seconds": round(time.monotonic() - begun_s, 1),
            "phase": status["phase"],
            "reason": status["reason"],
            "answers": len(answers),
            "failed": sum(bool(answer.error) for answer in answers),
            **more,
        }
    )
