# SPDX-License-Identifier: Apache-2.0
"""The keys and the certificate of a rollout's API: who may decide, who may not, and what replaces a key."""

import asyncio
import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Pair
from cryptography.hazmat.primitives import serialization
from kept_outcomes import merge
from kserve_server import KServeServer, response

from clients.access import Access
from clients.rollout.api_access import access_of, check_access
from clients.rollout.records.rollout_plan import Plan, SplitBy
from clients.rollout.records.state import Phase
from clients.rollout.records.store import Store
from clients.rollout.rollout_api import RolloutApi
from clients.rollout.routing.rollout_client import RolloutClient, Step
from ensemble_configs.split.outcome import Outcome
from trireme.base.errors import AccessDenied, RequestError, SpecError
from trireme.base.http_servers.http_access import HttpAccess
from trireme.commands import run_command

KEY, NEXT_KEY = "0123456789abcdef", "fedcba9876543210"
BATCH = b'{"rollout": 1, "step": 1, "batch": "x", "outcomes": [{"arm": "candidate"}]}'
PLAN = Plan(candidate=2, stable=1, release={}, salt="s", shares=(0.25, 0.5), lease_s=30.0, step_requests=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "authority")


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.server()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n")
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of a store with a rollout that is at its second share."""
    path = tmp_path / "rollouts.sqlite"
    with Store(path) as store:
        number = store.begin("chat", PLAN.text(), why="").id
        store.enter(number, Phase.RUNNING, why="", step=1)
    return path


@pytest.fixture
def front(path: Path, pair: Pair, token_file: Path) -> Iterator[RolloutApi]:
    found = RolloutApi(path, 1, "", merge, host="127.0.0.1", port=0, access=HttpAccess(pair.cert, pair.key, token_file))
    with contextlib.closing(found):
        yield found


def ask(front: RolloutApi, authority: Authority, path: str, body: bytes | None = None, **headers: str) -> Any:
    """Return the status of an answer, its headers, and its message."""
    context = ssl.create_default_context(cafile=str(authority.ca))
    address = front.url.removeprefix("https://")
    with contextlib.closing(http.client.HTTPSConnection(address, timeout=10, context=context)) as connection:
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), json.loads(answer.read())


def outcomes(path: Path) -> list[Any]:
    with Store(path) as store:
        found = (store.evidence(1, 1) or {"outcomes": []})["outcomes"]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("authorization", [None, "", "Bearer", f"Bearer {KEY}x", f"Basic {KEY}", KEY, "Bearer \xe9"])
@pytest.mark.parametrize(("question", "body"), [("/split", None), ("/outcomes", BATCH)])
def test_who_brings_no_key_gets_no_split_and_decides_nothing(
    front: RolloutApi, authority: Authority, path: Path, question: str, body: bytes | None, authorization: str | None
) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    status, answered, message = ask(front, authority, question, body, **headers)
    assert status == 401
    assert answered["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer KEY" in message["error"]
    assert KEY not in message["error"]
    assert outcomes(path) == []


def test_who_brings_the_key_is_counted(front: RolloutApi, authority: Authority, path: Path) -> None:
    assert front.url.startswith("https://")
    for scheme in ("Bearer", "bearer"):
        assert ask(front, authority, "/split", Authorization=f"{scheme} {KEY}")[0] == 200
    assert ask(front, authority, "/outcomes", BATCH, Authorization=f"Bearer {KEY}")[2] == {"is_counted": True}
    assert len(outcomes(path)) == 1


def test_the_judgement_decides_nothing_and_is_for_anybody(front: RolloutApi, authority: Authority) -> None:
    assert ask(front, authority, "/judgement")[0] == 200


def test_a_key_is_replaced_while_the_rollout_runs(front: RolloutApi, authority: Authority, token_file: Path) -> None:
    def statuses() -> list[int]:
        return [ask(front, authority, "/split", Authorization=f"Bearer {key}")[0] for key in (KEY, NEXT_KEY)]

    found = [statuses()]
    for keys in (f"{KEY}\n\n {NEXT_KEY} \n", NEXT_KEY):
        token_file.write_text(keys)
        found.append(statuses())
    assert found == [[200, 401], [200, 200], [401, 200]]


def test_a_file_that_is_just_being_replaced_lets_nobody_in(
    front: RolloutApi, authority: Authority, token_file: Path, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for content in ("", "short\n"):
        token_file.write_text(content)
        status, _, message = ask(front, authority, "/outcomes", BATCH, Authorization="Bearer short")
        assert status == 500  # a client keeps its outcomes, and asks again
        assert message == {"error": "the keys of this rollout cannot be read now; ask again later"}
        assert f"--token-file {token_file}" in caplog.text  # for the operator, not for strangers
        caplog.clear()
    assert outcomes(path) == []


def test_our_client_counts_by_its_key_and_keeps_outcomes_while_the_key_is_another(
    front: RolloutApi, authority: Authority, token_file: Path, tmp_path: Path, path: Path
) -> None:
    mine = tmp_path / "mine"
    mine.write_text(KEY)
    access = Access(ca_file=str(authority.ca), token_file=str(mine))

    async def run() -> None:
        async with RolloutClient(front.url, access=access) as client:
            assert client.answer is not None
            client.tell(Step(1, 1), Outcome(arm="candidate"))
            token_file.write_text(NEXT_KEY)
            await client._flush()
            assert outcomes(path) == []
            mine.write_text(NEXT_KEY)
            await client._flush()

    asyncio.run(run())
    assert [one["arm"] for one in outcomes(path)] == ["candidate"]


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ({"token_file": None}, "it got no key: give --token-file"),
        ({}, "is it the right one"),
        ({"ca_file": None}, "--ca-file"),
    ],
)
def test_our_client_says_at_once_why_it_is_refused(
    front: RolloutApi, authority: Authority, tmp_path: Path, access: dict[str, None], said: str
) -> None:
    other = tmp_path / "other"
    other.write_text(NEXT_KEY)
    fields: dict[str, Any] = {"is_tls": True, "ca_file": str(authority.ca), "token_file": str(other)} | access

    async def run() -> None:
        async with RolloutClient(front.url, access=Access(**fields)):
            pass

    with pytest.raises(AccessDenied, match=said):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("host", "split_by", "with_tls", "with_keys", "refusal"),
    [
        ("127.0.0.1", SplitBy.CLIENTS, False, False, ""),
        ("localhost", SplitBy.CLIENTS, False, False, ""),
        ("::1", SplitBy.CLIENTS, False, True, ""),
        ("0.0.0.0", SplitBy.SERVER, False, False, ""),
        ("0.0.0.0", SplitBy.ROUTER, False, False, ""),
        ("0.0.0.0", SplitBy.CLIENTS, True, True, ""),
        ("0.0.0.0", SplitBy.CLIENTS, False, False, "report the outcomes that decide .* --token-file"),
        ("10.0.0.7", SplitBy.CLIENTS, True, False, "report the outcomes that decide .* --token-file"),
        ("::", SplitBy.CLIENTS, False, True, "could be read on its way; give --cert-file"),
        ("node", SplitBy.SERVER, False, True, "could be read on its way; give --cert-file"),
    ],
)
def test_other_machines_decide_nothing_without_a_key(
    host: str, split_by: SplitBy, with_tls: bool, with_keys: bool, refusal: str, pair: Pair, token_file: Path
) -> None:
    cert, key = pair if with_tls else (None, None)
    access = HttpAccess(cert, key, token_file if with_keys else None)
    plan = Plan(candidate=2, stable=1, release={}, salt="s", split_by=split_by)
    with pytest.raises(RequestError, match=refusal) if refusal else contextlib.nullcontext():
        check_access(access, host, plan)


def test_what_cannot_be_used_is_named(tmp_path: Path, authority: Authority, pair: Pair, token_file: Path) -> None:
    other, text = authority.server("other"), tmp_path / "text"
    text.write_text("no PEM")
    for access, said in (
        (HttpAccess(pair.cert), "--cert-file is given without --key-file"),
        (HttpAccess(None, pair.key), "--key-file is given without --cert-file"),
        (HttpAccess(pair.cert, other.key), "cannot be used: KEY_VALUES_MISMATCH"),
        (HttpAccess(text, pair.key), "cannot be used"),
        (HttpAccess(tmp_path / "none", pair.key), "cannot be used: No such file"),
        (HttpAccess(token_file=tmp_path / "none"), "--token-file .* cannot be read: No such file"),
        (HttpAccess(token_file=tmp_path), "cannot be read: Is a directory"),
    ):
        with pytest.raises(SpecError, match=said):
            check_access(access, "127.0.0.1", PLAN)
    for content, said in (
        (b"\n \n", "it is empty"),
        (b"0123456789abcdef\nshort\n", "line 2 is no key; a key is at least 16 visible characters"),
        (b"0123456789 abcdef\n", "line 1 is no key"),
        (b"\xff" * 20, "it is not UTF-8"),
    ):
        token_file.write_bytes(content)
        with pytest.raises(SpecError, match=said):
            check_access(HttpAccess(token_file=token_file), "127.0.0.1", PLAN)


def test_a_key_with_a_password_does_not_ask_the_terminal(tmp_path: Path, pair: Pair) -> None:
    private = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    locked = tmp_path / "locked"
    locked.write_bytes(
        private.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(SpecError, match="without a password"):
        HttpAccess(pair.cert, locked).tls()


def test_a_rollout_goes_on_with_the_access_it_began_with(pair: Pair, token_file: Path) -> None:
    begun = HttpAccess(pair.cert, pair.key, token_file)
    plan = Plan(
        candidate=2, stable=1, release={}, salt="s", cert_file=str(pair.cert), key_file=str(pair.key),
        token_file=str(token_file),
    )  # fmt: skip
    assert access_of(plan) == begun
    assert HttpAccess().over(begun) == begun
    assert access_of(PLAN) == HttpAccess()
    other = Path("other")
    assert HttpAccess(token_file=other).over(begun) == HttpAccess(pair.cert, pair.key, other)
    assert HttpAccess(other).over(begun) == HttpAccess(other, None, token_file)  # and is refused


def test_going_on_where_strangers_could_decide_is_refused(
    path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command("rollout", ["run", "--store", str(path), "--server", str(tmp_path), "--host", "0.0.0.0"])
    assert ended.value.code == 2
    assert "--token-file" in capsys.readouterr().err


def test_a_server_without_tls_is_asked_beside_a_rollout_with_a_key(
    front: RolloutApi, authority: Authority, token_file: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    options = ["--split-url", front.url, "--split-ca-file", str(authority.ca), "--key", "7"]
    with KServeServer(response("Once", num_output_tokens=1, finish_reason="length", final=True)) as server:

        def status(*more: str) -> object:
            with pytest.raises(SystemExit) as ended:
                run_command("generate", ["hi", "--url", server.url, *options, *more])
            return ended.value.code

        assert status() == 2
        assert b"--split-token-file" in capfdbinary.readouterr().err
        assert status("--split-token-file", str(token_file)) == 0
    assert capfdbinary.readouterr().out == b"Once\n"
