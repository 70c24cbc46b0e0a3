# SPDX-License-Identifier: Apache-2.0
"""Triton's own TLS on gRPC, from `triton.grpc_tls` of a deployment: clients, commands on the machine, refusals."""

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from certificates import Authority
from rollout_site import Site, Texts, serving
from running_server import PROJECT, RunningServer, deployment_text
from streams_under_change import RoutedLoad

from clients.access import Access
from clients.rollout.local_server import LocalServer
from clients.server_control import ServerControl
from clients.streaming import GenerateRequest, TritonClient
from trireme.base.errors import AccessDenied

TOKENIZER = PROJECT / "examples/demo_model/target"
ASKED = GenerateRequest(text_input="Once upon a time", max_tokens=8, stream=True)


class Guarded(NamedTuple):
    """A server that wants client certificates, and the authorities that may issue them."""

    server: RunningServer
    authority: Authority


def grpc_tls(authority: Authority, *, is_mutual: bool) -> dict[str, object]:
    # A name that is not this machine's: commands here must reach it all the same.
    pair, own = authority.server(hosts=("triton.example", "localhost")), authority.client("own")
    more = {"client_ca_file": str(authority.ca), "own_cert_file": str(own.cert), "own_key_file": str(own.key)}
    return {"cert_file": str(pair.cert), "key_file": str(pair.key), **(more if is_mutual else {})}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder / "ours")
    text = deployment_text(
        "guarded", engine={"provider": "simulated"}, triton={"grpc_tls": grpc_tls(authority, is_mutual=True)}
    )
    with RunningServer(text, folder / "server") as server:
        yield Guarded(server, authority)


def answer(server: RunningServer, access: Access) -> str:
    with TritonClient(f"localhost:{server.grpc_port}", access=access) as client:
        assert client.is_ready()
        return "".join(chunk.text for chunk in client.generate(ASKED, timeout_s=30.0))


def test_a_client_with_a_certificate_is_answered(guarded: Guarded) -> None:
    client = guarded.authority.client()
    ca = str(guarded.authority.ca)
    assert answer(guarded.server, Access(ca_file=ca, cert_file=str(client.cert), key_file=str(client.key)))


def test_each_other_client_is_told_what_to_change(guarded: Guarded, tmp_path: Path) -> None:
    ca, stranger = str(guarded.authority.ca), Authority(tmp_path)
    theirs = stranger.client()
    for access, reason in (
        (Access(ca_file=ca), "no_client_certificate"),
        (Access(ca_file=ca, cert_file=str(theirs.cert), key_file=str(theirs.key)), "client_certificate"),
        (Access(ca_file=str(stranger.ca)), "unknown_authority"),
        (Access(), "tls_required"),
    ):
        with pytest.raises(AccessDenied) as denied:
            answer(guarded.server, access)
        assert denied.value.facts["reason"] == reason, denied.value.message


@pytest.mark.soak  # genai-perf is nearly a gigabyte
@pytest.mark.skipif(platform.machine() != "x86_64", reason="perf_analyzer is made for x86_64 only")
def test_genai_perf_asks_with_a_certificate(guarded: Guarded, tmp_path: Path) -> None:
    client, ca = guarded.authority.client(), guarded.authority.ca
    load = ["--requests", "12", "--concurrency", "2", "--isl", "8", "--osl", "6", "--tokenizer", TOKENIZER]
    shown = ["--ca-file", ca, "--cert-file", client.cert, "--key-file", client.key]

    def bench(name: str, *more: object) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "trireme", "bench", "genai-perf", "--out", tmp_path / name, "--json"]
        where = ["--url", f"grpcs://localhost:{guarded.server.grpc_port}", *more]
        return subprocess.run(
            [*map(str, (*command, *load, *where))], capture_output=True, text=True, check=False, timeout=300
        )

    answered = bench("a", *shown)
    assert answered.returncode == 0, answered.stderr
    assert json.loads(answered.stdout)["ends"] == {"done": 12}
    refused = bench("b", "--ca-file", ca)
    assert refused.returncode == 1, "the server has answered it without a certificate"


def test_the_server_says_how_it_is_reached(guarded: Guarded) -> None:
    assert f"gRPC     grpcs://localhost:{guarded.server.grpc_port}" in guarded.server.log()
    assert f"--url grpcs://localhost:{guarded.server.grpc_port}" in guarded.server.log()


def test_a_command_on_the_machine_reaches_a_server_with_tls_alone(tmp_path: Path) -> None:
    tls = grpc_tls(Authority(tmp_path / "ours"), is_mutual=False)
    text = deployment_text("encrypted", engine={"provider": "simulated"}, triton={"grpc_tls": tls})
    with RunningServer(text, tmp_path / "server") as server:
        local = LocalServer(ServerControl(server.folder / "build/encrypted/control.sock"), None)
        local.try_out(1)
        assert local.target().access.ca_file == tls["cert_file"]


def test_a_rollout_finds_the_certificates_by_itself_and_its_clients_lose_nothing(tmp_path: Path, texts: Texts) -> None:
    authority = Authority(tmp_path / "ours")
    client = authority.client()
    access = Access(ca_file=str(authority.ca), cert_file=str(client.cert), key_file=str(client.key))
    with serving(tmp_path, triton={"grpc_tls": grpc_tls(authority, is_mutual=True)}) as server:
        site = Site(server)
        url = f"localhost:{server.grpc_port}"
        with RoutedLoad(url, site.split_url, {1: texts[1], 2: texts[2]}, num_streams=16, access=access) as load:
            said = site.end_of(site.start(site.candidate(seed=2)))
            load.wait_for(2, 50)
        assert "promoted" in said
        assert site.served()["release"] == 2
        assert load.wrong == load.refused == []
        command = [sys.executable, "-m", "trireme", "drain", "--json"]
        drained = subprocess.run(command, cwd=site.folder, capture_output=True, text=True, check=True, timeout=60)
        assert json.loads(drained.stdout)["outcome"] == "finished"


@pytest.mark.soak
def test_a_rollout_over_two_servers_finds_the_certificates_of_both(tmp_path: Path, texts: Texts) -> None:
    authority = Authority(tmp_path / "ours")
    client = authority.client()
    access = Access(ca_file=str(authority.ca), cert_file=str(client.cert), key_file=str(client.key))
    triton = {"grpc_tls": grpc_tls(authority, is_mutual=True)}
    with serving(tmp_path, triton=triton) as first, serving(tmp_path / "second", triton=triton) as second:
        site, folder = Site(first), second.folder / "build" / "live"
        by_release = {1: texts[1], 2: texts[2]}
        apart = ("--second-server", str(folder), "--apart")
        unnamed = site.start(site.candidate(seed=2), options=apart)
        said, _ = unnamed.communicate(timeout=60)
        assert (unnamed.returncode, "its certificate is for triton.example, localhost; give" in said) == (2, True), said
        url = f"grpcs://localhost:{second.grpc_port}"
        with RoutedLoad(f"localhost:{first.grpc_port}", site.split_url, by_release, access=access) as load:
            said = site.end_of(site.start(site.candidate(seed=2), options=(*apart, "--second-url", url)))
            assert "promoted" in said, said
            load.wait_for(2, 50)
        assert site.served()["release"] == 2
        assert load.wrong == load.refused == []
        assert site.status()["plan"]["second_url"] == url
