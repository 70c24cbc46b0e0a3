# SPDX-License-Identifier: Apache-2.0
"""The prefill servers of a name: addresses that come are asked, those that go end what they have, DNS may be away."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from kserve_server import KServeServer
from test_prefill_servers import Asking, asking, handed_over, wait_for

from ensemble_configs.spec.engine.prefill_servers_spec import PrefillServersSpec
from serving.disaggregation import server_set
from serving.disaggregation.prefill_server import PrefillServer
from serving.disaggregation.server_set import ServerSet
from trireme.base.free_ports import free_ports
from trireme.base.server_names import ServerName

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
AGE_S = 0.05


class Names:
    """The addresses of a name, in place of DNS."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.takes_s = 0.0
        self.num_asked = 0

    async def of(self, _name: object) -> list[str]:
        self.num_asked += 1
        await asyncio.sleep(self.takes_s)
        return list(self.addresses)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    found = Names()
    monkeypatch.setattr(server_set, "_ASK_S", AGE_S)
    monkeypatch.setattr(server_set, "addresses_of", found.of)
    return found


class Site:
    """Scripted prefill servers on one port of several addresses, asked by their name."""

    def __init__(self, names: Names, run: Asking, servers: dict[str, KServeServer]) -> None:
        self.names, self.run, self.servers = names, run, servers
        self._key = 0

    def serve_at(self, *hosts: str) -> None:
        self.names.addresses = list(hosts)
        time.sleep(2 * AGE_S)  # the answer of before is too old

    def ask(self) -> bytes | None:
        self._key += 1
        return self.run.ask(self._key)


@pytest.fixture
def site(names: Names) -> Iterator[Site]:
    [port] = free_ports(1)
    with contextlib.ExitStack() as stack:
        servers = {host: KServeServer(handed_over(host.encode())) for host in HOSTS}
        for host, server in servers.items():
            assert server._server.add_insecure_port(f"{host}:{port}") == port
            stack.enter_context(server)
        run = stack.enter_context(asking(f"dns:///pods.example:{port}"))
        yield Site(names, run, servers)


def test_an_address_that_comes_is_asked_and_one_that_goes_is_asked_no_more(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    assert site.ask() is None
    assert site.run.outcomes == ["failed"]
    assert "DNS has no address" in caplog.text
    site.serve_at(HOSTS[0])
    assert {site.ask() for _ in range(4)} == {HOSTS[0].encode()}
    site.serve_at(HOSTS[1])
    assert {site.ask() for _ in range(4)} == {HOSTS[1].encode()}


def test_each_address_is_a_server_of_which_the_emptiest_is_asked(site: Site) -> None:
    release = threading.Event()
    for host in HOSTS:
        site.servers[host].script = (release, *site.servers[host].script)
    site.serve_at(*HOSTS)
    for key in range(6):
        site.run.begin(100 + key)
    wait_for(lambda: [len(server.requests) for server in site.servers.values()] == [2, 2, 2])
    release.set()
    assert sorted(str(site.run.result(100 + key)) for key in range(6)) == sorted(2 * [str(h.encode()) for h in HOSTS])


def test_what_an_address_that_goes_has_begun_ends_there(site: Site) -> None:
    release = threading.Event()
    site.servers[HOSTS[0]].script = (release, handed_over(b"late"))
    site.serve_at(HOSTS[0])
    site.run.begin(100)
    wait_for(lambda: len(site.servers[HOSTS[0]].requests) == 1)
    site.serve_at(HOSTS[1])
    assert site.ask() == HOSTS[1].encode()
    site.serve_at(HOSTS[1])
    assert site.ask() == HOSTS[1].encode()
    release.set()
    assert site.run.result(100) == b"late"


def test_a_dns_that_is_away_or_slow_takes_no_server_away_and_holds_no_prompt_up(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.serve_at(HOSTS[0])
    assert site.ask() == HOSTS[0].encode()
    site.serve_at()
    assert site.ask() == HOSTS[0].encode()
    monkeypatch.setattr(server_set, "_WAIT_S", 1.0)
    site.names.takes_s = 30.0
    time.sleep(2 * AGE_S)
    began_s = time.monotonic()
    assert {site.ask() for _ in range(20)} == {HOSTS[0].encode()}
    assert time.monotonic() - began_s < 10, "no prompt waits for longer than a second after the question"


def test_a_name_whose_dns_is_slow_holds_no_other_name_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def of(name: ServerName) -> list[str]:
        await asyncio.sleep(30 if name.host == "slow" else 0)
        return ["10.0.0.1"]

    async def urls() -> list[str]:
        spec = PrefillServersSpec.model_validate({"urls": ["dns:///slow:8001", "dns:///quick:8001"]})
        servers = ServerSet(spec)
        found = [server.url for server in await servers.servers()]
        await servers.close()
        return found

    monkeypatch.setattr(server_set, "addresses_of", of)
    assert asyncio.run(urls()) == ["10.0.0.1:8001"]


def test_the_connection_to_an_address_that_went_is_closed_once_nothing_is_asked_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[str] = []
    close = PrefillServer.close

    async def noted(server: PrefillServer) -> None:
        closed.append(server.url.rpartition(":")[0])
        await close(server)

    monkeypatch.setattr(PrefillServer, "close", noted)
    release = threading.Event()
    site.servers[HOSTS[0]].script = (release, handed_over(b"late"))
    site.serve_at(HOSTS[0])
    site.run.begin(100)
    wait_for(lambda: len(site.servers[HOSTS[0]].requests) == 1)
    for _ in range(2):
        site.serve_at(HOSTS[1])
        assert site.ask() == HOSTS[1].encode()
    assert closed == []
    release.set()
    assert site.run.result(100) == b"late"
    site.serve_at(HOSTS[1])
    assert site.ask() == HOSTS[1].encode()
    assert closed == [HOSTS[0]]


def test_dns_is_asked_for_prompts_alone_and_not_for_each(names: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_set, "_ASK_S", 60.0)
    names.addresses = [HOSTS[0]]
    [port] = free_ports(1)
    server = KServeServer(handed_over(b"x"))
    assert server._server.add_insecure_port(f"{HOSTS[0]}:{port}") == port
    with server, asking(f"dns:///pods.example:{port}") as run:
        time.sleep(0.1)
        assert names.num_asked == 0
        assert {run.ask(key) for key in range(10)} == {b"x"}
        assert names.num_asked == 1


def test_a_certificate_is_for_the_name_and_not_for_an_address(names: Names) -> None:
    async def hosts() -> list[tuple[str, str | None]]:
        spec = PrefillServersSpec.model_validate({"urls": ["grpcs+dns:///pods.llm.:8001", "dns:///plain:8001"]})
        servers = ServerSet(spec)
        found = [(server.url, server._certified_host) for server in await servers.servers()]
        await servers.close()
        return found

    names.addresses = ["10.0.0.1"]
    assert asyncio.run(hosts()) == [("grpcs://10.0.0.1:8001", "pods.llm"), ("10.0.0.1:8001", None)]
