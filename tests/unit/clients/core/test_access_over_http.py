# SPDX-License-Identifier: Apache-2.0
"""Requests over HTTP, through a real Envoy with TLS and a key: OpenAI-compatible servers, a rollout's split."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import Authority, Pair
from completions_server import DONE, CompletionsServer, event
from envoy_here import needs_envoy
from guarded_envoy import KEY, KEY_HEADER, TOKEN, Backend, GuardedEnvoy, Listener
from kserve_server import KServeServer, story
from test_routed_client import Rollout

from clients.access import Access
from clients.load.load_options import Load
from clients.load.openai.openai_client import AsyncOpenAIClient
from clients.load.run_command import put_on
from clients.rollout.records.state import Phase
from clients.rollout.routing.routed_client import RoutedClient
from clients.streaming import GenerateRequest
from trireme.base.errors import AccessDenied
from trireme.base.free_ports import free_ports
from trireme.base.project_files import CODE_ROOT

pytestmark = [pytest.mark.slow, needs_envoy]
AIPERF = CODE_ROOT / ".tools/aiperf/bin/aiperf"
TOKENIZER = CODE_ROOT / "examples/demo_model/target"
FIXED = {"kind": "fixed", "prompts": ["a b c"], "max_tokens": 8}
SCRIPT = (event("a"), event("b", finish_reason="length"), event(None, usage=(3, 2)), DONE)


class Doors(NamedTuple):
    """An Envoy in front of an OpenAI-compatible server and of a rollout."""

    bearer: int
    mutual: int
    keyless: int
    authority: Authority
    client: Pair
    server: CompletionsServer
    rollout: Rollout


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    authority = Authority(folder / "ours")
    pair = authority.server()
    rollout = Rollout(folder / "rollouts.sqlite")
    bearer, mutual, keyless = free_ports(3)
    with CompletionsServer(*SCRIPT) as server, KServeServer(*story()) as triton:
        listeners = [
            Listener(bearer, pair, wants_bearer=True),
            Listener(mutual, pair, client_ca=authority.ca, wants_key=True),
            Listener(keyless, pair),
        ]
        backends = [
            Backend("/v1", int(server.url.rpartition(":")[2].partition("/")[0])),
            Backend("/inference.", int(triton.url.rpartition(":")[2]), is_http2=True),
            Backend("/", int(rollout.front.url.rpartition(":")[2])),
        ]
        (folder / "token").write_text(TOKEN)
        (folder / "key").write_text(KEY)
        with GuardedEnvoy(folder / "envoy", listeners, backends):
            yield Doors(bearer, mutual, keyless, authority, authority.client(), server, rollout)
    rollout.front.close()


def by_bearer(doors: Doors) -> Access:
    return Access(ca_file=str(doors.authority.ca), token_file=str(doors.authority.ca.parent.parent / "token"))


def by_certificate(doors: Doors, *, is_ours: bool = True) -> Access:
    cert, private = (str(path) if is_ours else None for path in doors.client)
    key = str(doors.authority.ca.parent.parent / "key")
    return Access(
        ca_file=str(doors.authority.ca), cert_file=cert, key_file=private, token_file=key, token_header=KEY_HEADER
    )


def ready(port: int, access: Access, *, scheme: str = "https") -> bool:
    async def ask() -> bool:
        async with AsyncOpenAIClient(f"{scheme}://localhost:{port}/v1", access=access) as client:
            return await client.is_ready(model="mine", timeout_s=20.0)

    return asyncio.run(ask())


def test_a_load_on_an_openai_compatible_server_has_tls_and_a_key(doors: Doors, tmp_path: Path) -> None:
    load = Load(
        url=f"https://localhost:{doors.bearer}/v1", access=by_bearer(doors), model="mine", workload=FIXED, num_users=2,
        num_requests=6, num_processes=2,
    )  # fmt: skip
    run = put_on(load, tmp_path / "run", warmup=0, metrics=None)
    assert [record.end for record in run.records] == ["done"] * 6
    for path in (tmp_path / "run").iterdir():
        assert TOKEN.encode() not in path.read_bytes()


@pytest.mark.skipif(not AIPERF.is_file(), reason="1.2 GB: `scripts/bootstrap.py --only aiperf` installs it")
def test_aiperf_trusts_the_authority_that_is_named_and_no_other(doors: Doors, tmp_path: Path) -> None:
    def bench(name: str, ca: Path) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "trireme", "bench", "aiperf", "--model", "mine", "--json", "--warmup", "0"]
        load = ["--concurrency", "1", "--requests", "2", "--isl", "3", "--osl", "2", "--tokenizer", str(TOKENIZER)]
        where = ["--url", f"https://localhost:{doors.keyless}/v1", "--ca-file", str(ca), "--out", str(tmp_path / name)]
        return subprocess.run([*command, *load, *where], capture_output=True, text=True, timeout=180, check=False)

    answered = bench("a", doors.authority.ca)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["ends"] == {"done": 2}
    refused = bench("b", Authority(tmp_path / "strangers").ca)
    assert refused.returncode != 0


def test_the_variable_of_openais_clients_still_names_the_key(doors: Doors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", TOKEN)
    assert ready(doors.bearer, Access(ca_file=str(doors.authority.ca)))


def test_each_wrong_credential_over_https_is_told_with_its_cure(doors: Doors, tmp_path: Path) -> None:
    assert ready(doors.mutual, by_certificate(doors))
    (tmp_path / "wrong").write_text("another-s3cret")
    stranger = Authority(tmp_path / "strangers")
    theirs = stranger.client()
    for port, access, reason in (
        (doors.bearer, Access(ca_file=str(stranger.ca)), "unknown_authority"),
        (doors.bearer, Access(ca_file=str(doors.authority.ca), server_name="other.example"), "wrong_name"),
        (doors.bearer, Access(ca_file=str(doors.authority.ca)), "no_key"),
        (doors.bearer, Access(ca_file=str(doors.authority.ca), token_file=str(tmp_path / "wrong")), "key"),
        (doors.mutual, by_certificate(doors, is_ours=False), "no_client_certificate"),
        (
            doors.mutual,
            Access(ca_file=str(doors.authority.ca), cert_file=str(theirs.cert), key_file=str(theirs.key)),
            "client_certificate",
        ),
    ):
        with pytest.raises(AccessDenied) as denied:
            ready(port, access)
        assert denied.value.facts["reason"] == reason, denied.value.message
        assert "s3cret" not in str(denied.value)
    with pytest.raises(AccessDenied, match="speaks TLS; give --tls"):
        ready(doors.bearer, Access(), scheme="http")


@pytest.mark.skipif(not (CODE_ROOT / ".tools/bench/bin/locust").is_file(), reason="needs Locust: .tools/bench")
def test_locusts_users_ask_an_openai_compatible_server_with_everything(doors: Doors, tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_text("kind: fixed\nprompts: [a b c]\nmax_tokens: 9\n")
    access = by_certificate(doors)
    options = [
        "--url", f"https://localhost:{doors.mutual}/v1", "--model", "mine", "--json", "--warmup", "0", "--users", "2",
        "--requests", "6", "--workload", str(tmp_path / "w.yaml"), "--out", str(tmp_path / "run"),
        "--ca-file", str(access.ca_file), "--cert-file", str(access.cert_file), "--key-file", str(access.key_file),
        "--token-file", str(access.token_file), "--token-header", KEY_HEADER,
    ]  # fmt: skip
    command = [sys.executable, "-m", "trireme", "bench", "locust", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ends"] == {"done": 6}


def test_a_rollout_is_heard_over_https_and_outcomes_come_back(doors: Doors) -> None:
    doors.rollout.enter(Phase.RUNNING)

    async def ask() -> None:
        access = by_bearer(doors)
        async with RoutedClient(
            f"localhost:{doors.bearer}", f"https://localhost:{doors.bearer}", access=access
        ) as client:
            for _ in range(16):
                assert [chunk async for chunk in client.generate(GenerateRequest(text_input="a", max_tokens=4))]

    asyncio.run(ask())
    outcomes = doors.rollout.outcomes()
    assert len(outcomes) >= 6
    assert not any(one.get("error") for one in outcomes)


def test_a_rollout_that_cannot_be_heard_for_a_certificate_or_a_key_is_told(doors: Doors, tmp_path: Path) -> None:
    ca = str(doors.authority.ca)

    async def enter(access: Access) -> None:
        async with RoutedClient(f"localhost:{doors.bearer}", f"https://localhost:{doors.bearer}", access=access):
            pass

    for access, reason in (
        (Access(ca_file=str(Authority(tmp_path).ca)), "unknown_authority"),
        (Access(ca_file=ca), "no_key"),
    ):
        with pytest.raises(AccessDenied) as denied:
            asyncio.run(enter(access))
        assert denied.value.facts["reason"] == reason, denied.value.message
