# SPDX-License-Identifier: Apache-2.0
"""Every first-party client through a real Envoy that wants TLS, a client certificate or a key, to the real Triton."""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import Authority, Pair
from envoy_here import needs_envoy
from guarded_envoy import KEY, KEY_HEADER, TOKEN, Backend, GuardedEnvoy, Listener
from running_server import PROJECT, RunningServer

from clients.access import Access
from clients.streaming import AsyncTritonClient, GenerateRequest, TritonClient
from trireme.base.errors import AccessDenied
from trireme.base.free_ports import free_ports

pytestmark = needs_envoy
TOKENIZER = PROJECT / "examples/demo_model/target"
ASKED = GenerateRequest(text_input="Once upon a time", max_tokens=8, stream=True)


class Doors(NamedTuple):
    """An Envoy's ports by what they want, and the files for them."""

    bearer: int  # TLS, and a bearer token
    mutual: int  # TLS, a client certificate, and a key in a header of its own
    certificate: int  # TLS and a client certificate, which is all that perf_analyzer has over gRPC
    expired: int
    other_name: int
    authority: Authority
    stranger: Authority
    client: Pair
    token_file: Path
    key_file: Path


@pytest.fixture(scope="module")
def doors(simulated: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    folder = tmp_path_factory.mktemp("doors")
    authority, stranger = Authority(folder / "ours"), Authority(folder / "strangers", "strangers")
    client = authority.client()
    server = authority.server()
    bearer, mutual, certificate, expired, other_name = free_ports(5)
    listeners = [
        Listener(bearer, server, wants_bearer=True),
        Listener(mutual, server, client_ca=authority.ca, wants_key=True),
        Listener(certificate, server, client_ca=authority.ca),
        Listener(expired, authority.server("expired", days=-1)),
        Listener(other_name, authority.server("other", hosts=("triton.example",))),
    ]
    backends = [
        Backend("/inference.GRPCInferenceService", simulated.grpc_port, is_http2=True),
        Backend("/metrics", simulated.metrics_port),
        Backend("/v2", simulated.http_port),
    ]
    token_file, key_file = folder / "token", folder / "key"
    token_file.write_text(f"{TOKEN}\n")
    key_file.write_text(KEY)
    with GuardedEnvoy(folder / "envoy", listeners, backends):
        yield Doors(bearer, mutual, certificate, expired, other_name, authority, stranger, client, token_file, key_file)


def by_bearer(doors: Doors, **changes: object) -> Access:
    return Access(**{"ca_file": str(doors.authority.ca), "token_file": str(doors.token_file)} | changes)  # type: ignore[arg-type]


def by_certificate(doors: Doors, pair: Pair | None = None, **changes: object) -> Access:
    pair = pair or doors.client
    fields: dict[str, object] = {
        "ca_file": str(doors.authority.ca), "cert_file": str(pair.cert), "key_file": str(pair.key),
        "token_file": str(doors.key_file), "token_header": KEY_HEADER,
    }  # fmt: skip
    return Access(**fields | changes)  # type: ignore[arg-type]


def answer(port: int, access: Access) -> str:
    with TritonClient(f"localhost:{port}", access=access) as client:
        return "".join(chunk.text for chunk in client.generate(ASKED, timeout_s=30.0))


def test_a_client_with_the_right_certificates_and_key_is_answered(doors: Doors) -> None:
    assert answer(doors.bearer, by_bearer(doors))
    assert answer(doors.mutual, by_certificate(doors))
    assert answer(doors.other_name, by_bearer(doors, server_name="triton.example"))


@pytest.mark.parametrize(
    ("door", "access", "reason", "cure"),
    [
        pytest.param("bearer", {"ca_file": "stranger"}, "unknown_authority", "--ca-file", id="wrong authority"),
        pytest.param("bearer", {"ca_file": None, "is_tls": True}, "unknown_authority", "--ca-file", id="no authority"),
        pytest.param("expired", {}, "expired", "renewed", id="expired"),
        pytest.param("other_name", {}, "wrong_name", "--tls-server-name", id="other name"),
        pytest.param("mutual", {}, "no_client_certificate", "--cert-file", id="no client certificate"),
        pytest.param(
            "mutual", {"pair": "stranger"}, "client_certificate", "--cert-file", id="a stranger's certificate"
        ),
        pytest.param("mutual", {"pair": "old"}, "client_certificate", "has expired", id="an expired certificate"),
        pytest.param("bearer", {"token_file": None}, "no_key", "--token-file", id="no key"),
        pytest.param("bearer", {"token_file": "wrong"}, "key", "is it the right one", id="another key"),
        pytest.param("bearer", {"plain": True}, "tls_required", "--tls", id="without TLS"),
        pytest.param("mutual", {"plain": True}, "tls_required", "--tls", id="without mTLS"),
    ],
)
def test_what_is_wrong_is_said_with_the_cure_and_no_secret(
    doors: Doors, tmp_path: Path, door: str, access: dict[str, object], reason: str, cure: str
) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("another-s3cret")
    pairs = {"stranger": doors.stranger.client(), "old": doors.authority.client("old", days=-1)}
    if access.pop("plain", False):
        given = Access()
    elif "pair" in access:
        given = by_certificate(doors, pairs[str(access["pair"])])
    else:
        files = {"stranger": str(doors.stranger.ca), "wrong": str(wrong)}
        given = by_bearer(doors, **{name: files.get(str(value), value) for name, value in access.items()})
    with pytest.raises(AccessDenied) as denied:
        answer(getattr(doors, door), given)
    assert denied.value.facts["reason"] == reason, denied.value.message
    assert cure in denied.value.message
    assert f"localhost:{getattr(doors, door)}" in denied.value.message
    assert "s3cret" not in str(denied.value)


def trireme(*args: object, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "trireme", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=240, check=False, env={**os.environ, **(env or {})}
    )


def options(doors: Doors) -> list[object]:
    """Return the options of a command for the door with the bearer token."""
    where = ["--url", f"grpcs://localhost:{doors.bearer}", "--ca-file", doors.authority.ca]
    return [*where, "--token-file", doors.token_file]


def by_all(doors: Doors) -> list[object]:
    """Return the options for the door that wants everything."""
    pair = ["--cert-file", doors.client.cert, "--key-file", doors.client.key, "--ca-file", doors.authority.ca]
    return ["--url", f"localhost:{doors.mutual}", *pair, "--token-env", "LLM_KEY", "--token-header", KEY_HEADER]


def refuse_secrets(folder: Path, *texts: str) -> None:
    """Assert that no file of a folder and no text has a key in it."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        assert b"s3cret" not in path.read_bytes(), path
    assert not any("s3cret" in text for text in texts), texts


def test_generate_asks_with_a_token_and_with_everything(doors: Doors) -> None:
    for args, env in ((options(doors), {}), (by_all(doors), {"LLM_KEY": KEY})):
        done = trireme("generate", "Once upon a time", "--max-tokens", 8, *args, env=env)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip()


def test_generate_says_what_is_wrong_in_one_line(doors: Doors) -> None:
    done = trireme("generate", "Once", "--url", f"localhost:{doors.mutual}", "--ca-file", doors.authority.ca)
    assert done.returncode == 2
    assert done.stderr == (
        f"trireme: localhost:{doors.mutual} wants a client certificate (mTLS); give --cert-file and --key-file\n"
    )


def test_a_batch_job_runs_to_its_end_and_stops_at_once_for_a_wrong_key(doors: Doors, tmp_path: Path) -> None:
    body = {"model": "any", "prompt": "Once upon a time", "max_tokens": 4}
    lines = [
        json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": body}) for n in range(6)
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    job = ["batch", "run", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "--without-admission", "--json"]
    wrong = tmp_path / "wrong"
    wrong.write_text("another-key")
    refused = trireme(*job, *options(doors)[:-1], wrong)
    assert refused.returncode == 2
    assert "RBAC: access denied" in refused.stderr
    done = trireme(*job, *options(doors))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["done"] == 6
    assert json.loads(done.stdout)["resumed"] == 0, "no line was given up for the key"
    refuse_secrets(tmp_path, done.stdout, done.stderr, refused.stderr)


def test_a_load_is_put_on_with_metrics_over_https(doors: Doors, tmp_path: Path) -> None:
    metrics = ["--metrics", f"https://localhost:{doors.bearer}/metrics"]
    load = ["--concurrency", 2, "--requests", 12, "--isl", 8, "--osl", 4, "--warmup", 2, "--processes", 2, "--json"]
    done = trireme("bench", "run", *load, *metrics, *options(doors), "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ends"] == {"done": 12}
    assert (tmp_path / "run" / "server.jsonl").read_text().count("trireme_") > 1
    refuse_secrets(tmp_path, done.stdout, done.stderr)


@pytest.mark.parametrize("page", ["https", "http"])
def test_metrics_that_cannot_be_read_end_a_load_before_it_begins(doors: Doors, tmp_path: Path, page: str) -> None:
    args = options(doors) if page == "http" else options(doors)[:-2]
    given = ["--metrics", f"{page}://localhost:{doors.bearer}/metrics", "--tokenizer", TOKENIZER]
    done = trireme("bench", "run", "--concurrency", 1, "--requests", 1, *given, *args, "--out", tmp_path / "run")
    assert done.returncode == 2
    said = "HTTP 403 of https://" if page == "https" else "--metrics http://"
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_load_with_a_wrong_authority_ends_before_it_begins(doors: Doors, tmp_path: Path) -> None:
    where = ["--url", f"localhost:{doors.bearer}", "--ca-file", doors.stranger.ca, "--warmup", 0]
    lengths = ["--tokenizer", TOKENIZER]
    done = trireme("bench", "run", "--concurrency", 1, "--requests", 1, *lengths, *where, "--out", tmp_path / "run")
    assert done.returncode == 2, done.stderr
    assert "is not of an authority that is trusted" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not (PROJECT / ".tools/bench/bin/locust").is_file(), reason="needs Locust: .tools/bench")
def test_locusts_users_ask_with_everything(doors: Doors, tmp_path: Path) -> None:
    load = ["--users", 2, "--requests", 8, "--isl", 8, "--osl", 4, "--warmup", 0, "--metrics", "none", "--json"]
    env = {"LLM_KEY": KEY}
    done = trireme("bench", "locust", *load, *by_all(doors), "--out", tmp_path / "run", env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ends"] == {"done": 8}
    refuse_secrets(tmp_path, done.stdout, done.stderr)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="perf_analyzer is made for x86_64 only")
def test_perf_analyzer_asks_with_a_client_certificate(doors: Doors, tmp_path: Path) -> None:
    pair = ["--cert-file", doors.client.cert, "--key-file", doors.client.key, "--ca-file", doors.authority.ca]
    load = ["--concurrency", 2, "--requests", 8, "--isl", 8, "--osl", 4, "--warmup", 0, "--metrics", "none", "--json"]
    where = ["--url", f"grpcs://localhost:{doors.certificate}"]
    done = trireme("bench", "perf-analyzer", *load, *where, *pair, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["ends"] == {"done": figures["num_requests"]}


def test_a_certificate_and_a_key_that_are_replaced_are_used_from_then_on(doors: Doors, tmp_path: Path) -> None:
    """A stream that runs goes on; the next request shows what is in the files now."""
    cert, key, token = tmp_path / "tls.crt", tmp_path / "tls.key", tmp_path / "token"
    shutil.copy(doors.client.cert, cert)
    shutil.copy(doors.client.key, key)
    token.write_text(KEY)
    access = by_certificate(doors, Pair(cert, key), token_file=str(token))
    long = GenerateRequest(text_input="Once upon a time", max_tokens=400, min_tokens=400, stream=True)

    async def ask() -> None:
        async with AsyncTritonClient(f"localhost:{doors.mutual}", access=access) as client:
            running = client.generate(long)
            await anext(running)
            token.write_text("revoked")
            with pytest.raises(AccessDenied, match="is it the right one"):
                await anext(client.generate(ASKED))
            token.write_text(KEY)
            stranger = doors.stranger.client("renewed")
            shutil.copy(stranger.key, key)
            shutil.copy(stranger.cert, cert)
            with pytest.raises(AccessDenied, match="does not accept the client certificate"):
                await anext(client.generate(ASKED))
            renewed = doors.authority.client("renewed")
            shutil.copy(renewed.key, key)
            shutil.copy(renewed.cert, cert)
            assert [chunk.text async for chunk in client.generate(ASKED)]
            rest = [chunk async for chunk in running]
            assert rest[-1].is_final

    asyncio.run(ask())
