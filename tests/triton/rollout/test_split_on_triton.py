# SPDX-License-Identifier: Apache-2.0
"""The server splits the requests of clients that know nothing of it, by gRPC and HTTP, unary and streaming."""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raw_calls import stream
from rollout_site import PATIENCE_S, Site, Texts, serving
from streams_under_change import MAX_TOKENS, PROMPTS, Streams

from ensemble_configs.split.outcome_journal import JournalReader

NUM = 48  # requests of each way


@pytest.fixture(scope="module")
def split_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a server of releases 1 and 2, of which 2 is on trial."""
    with serving(tmp_path_factory.mktemp("split"), step_ms=2.0) as server:
        site = Site(server)
        stable = dict(site.served()["releases"][0])
        site.control.ask("add", release=stable | {"release": 2, "engine": stable["engine"] | {"seed": 2}})
        yield site


def canary(site: Site, share: float, *, rollout: int, lease_s: float = 120.0) -> Path:
    """Split the requests, and return the journal of their outcomes."""
    between = [{"upto": 1 - share, "release": 1}] if share < 0.5 else []
    shares = [
        {"upto": share, "release": 2, "arm": "candidate"},
        *between,
        {"upto": 1.0, "release": 1, "arm": "baseline"},
    ]
    asked: dict[str, Any] = {"rollout": rollout, "step": 0, "hash_seed": "s", "lease_s": lease_s}
    return Path(str(site.control.ask("split", shares=shares, **asked)["journal"]))


def request(prompt: str) -> dict[str, object]:
    return {"text_input": prompt, "max_tokens": MAX_TOKENS, "exclude_input_in_output": True}


def grpc_stream(model: str) -> Callable[[Site, str], str]:
    def ask(site: Site, prompt: str) -> str:
        responses = stream(site.server.url, model, request(prompt) | {"stream": True})
        return "".join(response["text_output"].item().decode() for response in responses)

    return ask


def http(model: str, method: str, *, version: str = "") -> Callable[[Site, str], str]:
    def ask(site: Site, prompt: str) -> str:
        path = f"/v2/models/{model}{version and f'/versions/{version}'}/{method}"
        body = json.dumps(request(prompt) | {"stream": method == "generate_stream"}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{site.server.http_port}{path}", body, timeout=30) as answer:
            lines = answer.read().decode().split("\n\n")
        events = [json.loads(line.removeprefix("data: ")) for line in lines if line]
        return "".join(event["text_output"] for event in events)

    return ask


WAYS = {
    "gRPC stream of ensemble": grpc_stream("ensemble"),
    "gRPC stream of tensorrt_llm_bls": grpc_stream("tensorrt_llm_bls"),
    "HTTP generate": http("ensemble", "generate"),
    "HTTP generate_stream": http("ensemble", "generate_stream"),
    "HTTP generate of tensorrt_llm_bls": http("tensorrt_llm_bls", "generate"),
}


def releases_of(site: Site, texts: Texts, ask: Callable[[Site, str], str], num: int) -> Counter[int]:
    """Return how many of `num` requests each release answered; every text is whole."""
    found = Counter[int]()
    for number in range(num):
        prompt = PROMPTS[number % len(PROMPTS)]
        text = ask(site, prompt)
        found[next(release for release, said in texts.items() if said[prompt] == text)] += 1
    return found


@pytest.mark.parametrize("way", WAYS)
def test_every_client_meets_the_candidate_in_the_stated_share(split_site: Site, texts: Texts, way: str) -> None:
    rollout = 1 + list(WAYS).index(way)
    journal = canary(split_site, 0.25, rollout=rollout)
    # What comes first may be answered by the stable release, until the candidate's tokenizer is loaded.
    deadline_s = time.monotonic() + PATIENCE_S
    while releases_of(split_site, texts, WAYS[way], 8)[2] == 0:
        assert time.monotonic() < deadline_s
    before = len(JournalReader(journal).read({}).lines)
    found = releases_of(split_site, texts, WAYS[way], NUM)
    assert abs(found[2] - NUM // 4) <= 4
    lines = JournalReader(journal).read({}).lines[before:]
    arms = Counter((line.release, line.outcome.arm) for line in lines)
    assert arms[2, "candidate"] == found[2]
    assert abs(arms[1, "baseline"] - NUM // 4) <= 4
    assert set(arms) == {(2, "candidate"), (1, "baseline")}
    assert all(line.outcome.num_tokens == MAX_TOKENS and not line.outcome.error for line in lines)


def test_a_named_version_is_never_moved(split_site: Site, texts: Texts) -> None:
    canary(split_site, 0.5, rollout=20)
    assert releases_of(split_site, texts, grpc_stream("ensemble"), 8)[2] > 0
    for method in ("generate", "generate_stream"):
        assert releases_of(split_site, texts, http("ensemble", method, version="1"), 16) == {1: 16}

    def named(site: Site, prompt: str) -> str:
        responses = stream(site.server.url, "ensemble", request(prompt) | {"stream": True}, version="1")
        return "".join(response["text_output"].item().decode() for response in responses)

    assert releases_of(split_site, texts, named, 16) == {1: 16}


def test_a_response_tells_its_release_where_it_is_asked_for(split_site: Site, texts: Texts) -> None:
    canary(split_site, 0.5, rollout=22)
    found = Counter[int]()
    for number in range(24):
        prompt, model = PROMPTS[number % len(PROMPTS)], ("ensemble", "tensorrt_llm_bls")[number % 2]
        responses = list(stream(split_site.server.url, model, request(prompt) | {"return_release": True}))
        [release] = [int(response["release"].item()) for response in responses if "release" in response]
        assert "".join(response["text_output"].item().decode() for response in responses) == texts[release][prompt]
        found[release] += 1
    assert set(found) == {1, 2}


def test_a_share_holds_for_all_streams_at_once_and_ends_with_its_lease(split_site: Site, texts: Texts) -> None:
    by_release = {seed: texts[seed] for seed in (1, 2)}
    with Streams(split_site.server.url, by_release, num_streams=16) as load:
        canary(split_site, 0.5, rollout=21)
        load.wait_for(2, 40)
        before = Counter(load.num_answers)
        load.wait_for(2, 200)
        found = load.num_answers - before
        assert 0.4 < found[2] / found.total() < 0.6
        canary(split_site, 0.5, rollout=21, lease_s=0.5)
        time.sleep(1.5)
        before = Counter(load.num_answers)
        load.wait_for(1, 50)
        assert (load.num_answers - before)[2] == 0
    assert (load.wrong, load.refused) == ([], [])


def test_a_key_in_a_header_keeps_requests_on_one_release(tmp_path: Path, texts: Texts) -> None:
    with serving(tmp_path, sticky_key="header:x-session") as server:
        site = Site(server)
        stable = dict(site.served()["releases"][0])
        site.control.ask("add", release=stable | {"release": 2, "engine": stable["engine"] | {"seed": 2}})
        canary(site, 0.5, rollout=1)
        releases: dict[str, Counter[int]] = {}
        for _ in range(3):
            for session in "abcdefgh":
                body = json.dumps(request(PROMPTS[0])).encode()
                url = f"http://127.0.0.1:{server.http_port}/v2/models/ensemble/generate"
                asked = urllib.request.Request(url, body, {"X-Session": session})
                with urllib.request.urlopen(asked, timeout=30) as answer:
                    text = json.load(answer)["text_output"]
                release = next(release for release, said in texts.items() if said[PROMPTS[0]] == text)
                releases.setdefault(session, Counter())[release] += 1
            time.sleep(1)  # the first ones may come before the candidate is open
    last = {session: found.most_common(1)[0][0] for session, found in releases.items()}
    assert set(last.values()) == {1, 2}


def test_the_server_s_own_metrics_estimate_a_rollout(split_site: Site) -> None:
    canary(split_site, 0.5, rollout=30)
    ask = WAYS["gRPC stream of ensemble"]
    for number in range(120):
        ask(split_site, PROMPTS[number % len(PROMPTS)])
    found = json.loads(split_site.done("estimate", "--json", "--steps", "10,50,100"))
    assert found["seen"]["requests"] >= 120
    assert [share["share"] for share in found["shares"]] == [0.1, 0.5]
    by_rate = [share["requests"] / (found["requests_per_s"] * share["share"]) for share in found["shares"]]
    assert [share["seconds"] for share in found["shares"]] == pytest.approx(by_rate)
    assert found["requests_until_pass"] > 0
    # A busy machine's first tokens may differ by more than the gate has requests for.
    assert found["seconds"] in (None, pytest.approx(sum(by_rate)))
    assert "requests a second, as in its " in split_site.done("estimate")
