# SPDX-License-Identifier: Apache-2.0
"""A gateway before the servers of a name: new addresses get requests, those that are gone get none, streams end."""

import contextlib
import http.client
import json
import re
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from gateway_before_scripts import counts, wait_until
from kserve_server import KServeServer, response, story
from metrics_page import metrics_page
from running_gateway import RunningGateway

from clients.access import Access
from gateway.servers import named_servers, server_pool
from gateway.servers.named_servers import access_of
from trireme.base.free_ports import free_ports
from trireme.base.server_names import read_server_name

HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")


class Names:
    """The addresses of a name, in place of DNS."""

    def __init__(self) -> None:
        self.addresses: list[str] = []

    async def of(self, _name: object) -> list[str]:
        return list(self.addresses)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    monkeypatch.setattr(named_servers, "_ASK_S", 0.05)
    monkeypatch.setattr(server_pool, "_LOOK_S", 0.05)
    found = Names()
    monkeypatch.setattr(named_servers, "addresses_of", found.of)
    return found


class Site:
    """Scripted servers on one port of several addresses, and a gateway that knows their name."""

    def __init__(self, names: Names, gateway: RunningGateway, servers: dict[str, KServeServer]) -> None:
        self.names, self.gateway, self.servers = names, gateway, servers

    def serve_at(self, *hosts: str) -> None:
        """Change the name's addresses, and wait until the gateway has them and no others."""
        self.names.addresses = list(hosts)
        wait_until(lambda: {host for host, takes in self.taking().items() if takes} == set(hosts))

    def taking(self) -> dict[str, bool]:
        """Return whether each address that the gateway knows takes requests."""
        page = self.gateway.call("GET", "/metrics").data.decode()
        found = re.findall(r'^trireme_gateway_server_is_taking_requests{server="(\S+):\d+"} (\S+)$', page, re.MULTILINE)
        return {host: float(value) == 1 for host, value in found}

    @contextlib.contextmanager
    def stream(self) -> Iterator[http.client.HTTPResponse]:
        """Yield a stream that has begun."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.gateway.port, timeout=10)) as connection:
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hi", "stream": True}))
            with connection.getresponse() as answer:
                yield answer

    def asked(self) -> list[int]:
        return counts(list(self.servers.values()))


@pytest.fixture
def site(names: Names) -> Iterator[Site]:
    [port] = free_ports(1)
    servers = {host: KServeServer(*story()) for host in HOSTS}
    for host, server in servers.items():
        assert server._server.add_insecure_port(f"{host}:{port}") == port
        server._server.start()
    with RunningGateway(f"dns:///pods.example:{port}") as gateway:
        yield Site(names, gateway, servers)
    for server in servers.values():
        server._server.stop(grace=0)


def test_before_a_name_has_an_address_callers_are_told_to_try_again(site: Site) -> None:
    assert site.gateway.call("GET", "/health/ready").status == 503
    answer = site.gateway.complete()
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    site.serve_at(HOSTS[0])
    assert site.gateway.call("GET", "/health/ready").status == 200
    assert site.gateway.complete().status == 200


def test_an_address_that_comes_gets_requests_and_one_that_goes_gets_none(site: Site) -> None:
    def ask(number: int) -> list[int]:
        before = site.asked()
        for each in range(number):
            assert site.gateway.complete(prompt=f"{each} {before} " * 300).status == 200
        return [now - then for now, then in zip(site.asked(), before, strict=True)]

    site.serve_at(*HOSTS[:2])
    assert ask(6) == [3, 3, 0]
    site.serve_at(*HOSTS)
    assert all(count > 0 for count in ask(9))
    site.serve_at(HOSTS[2])
    assert ask(6) == [0, 0, 6]
    wait_until(lambda: set(site.taking()) == {HOSTS[2]})  # the others are forgotten
    site.serve_at(HOSTS[0], HOSTS[2])
    assert ask(6)[0] >= 1


def test_a_stream_at_an_address_that_goes_ends_there_and_only_then_it_is_forgotten(site: Site) -> None:
    may_end = threading.Event()
    begun, *rest = story()
    site.servers[HOSTS[0]].script = (begun, may_end, *rest)
    site.serve_at(HOSTS[0])
    with site.stream() as stream:
        first = stream.readline()
        site.serve_at(HOSTS[1])
        assert site.taking() == {HOSTS[0]: False, HOSTS[1]: True}
        assert site.gateway.complete().status == 200
        may_end.set()
        text = (first + stream.read()).decode()
    assert text.endswith("data: [DONE]\n\n")
    wait_until(lambda: set(site.taking()) == {HOSTS[1]})
    assert site.asked() == [1, 1, 0]


def test_one_that_is_back_before_its_stream_has_ended_is_the_one_that_was(site: Site) -> None:
    may_end = threading.Event()
    site.servers[HOSTS[0]].script = (response("Once", num_output_tokens=1), may_end, *story()[1:])
    site.serve_at(HOSTS[0])
    with site.stream() as stream:
        site.serve_at(HOSTS[1])
        site.serve_at(HOSTS[0])
        may_end.set()
        assert stream.read().decode().endswith("data: [DONE]\n\n")
    assert site.gateway.complete().status == 200


def test_the_status_has_the_servers_of_now(site: Site) -> None:
    def shown() -> dict[str, list[str]]:
        answer = site.gateway.call("GET", "/admin/status")
        assert answer.status == 200
        return {each["url"].rpartition(":")[0]: each["taking_requests_for"] for each in answer.json["servers"]}

    assert shown() == {}
    site.serve_at(HOSTS[0])
    assert shown() == {HOSTS[0]: ["demo"]}
    site.serve_at(*HOSTS)
    assert shown() == {host: ["demo"] for host in HOSTS}


def test_servers_that_come_tell_their_load_at_the_port_of_their_pages(names: Names) -> None:
    ports = free_ports(2)
    engine = '{model="tensorrt_llm",version="1"}'
    text = f"trireme_engine_up{engine} 1\ntrireme_requests_running{engine} "
    with contextlib.ExitStack() as stack:
        for number, host in enumerate(HOSTS[:2]):
            server = KServeServer(*story())
            assert server._server.add_insecure_port(f"{host}:{ports[0]}") == ports[0]
            stack.enter_context(server)
            stack.enter_context(metrics_page(partial(str, f"{text}{7 * number}\n"), host=host, port=ports[1]))
        gateway = stack.enter_context(
            RunningGateway(f"dns:///pods.example:{ports[0]}", metrics_urls=(f"dns:///pods.example:{ports[1]}",))
        )

        def shown() -> dict[str, float]:
            page = gateway.call("GET", "/metrics").data.decode()
            found = re.findall(r'^trireme_gateway_server_load_requests{server="(\S+):\d+"} (\S+)$', page, re.MULTILINE)
            return {host: float(value) for host, value in found}

        names.addresses = [HOSTS[0]]
        wait_until(lambda: shown() == {HOSTS[0]: 0})
        names.addresses = list(HOSTS[:2])
        wait_until(lambda: shown() == {HOSTS[0]: 0, HOSTS[1]: 7})
        figures = [each["figures"]["engines"] for each in gateway.call("GET", "/admin/status").json["servers"]]
        assert [engine["running_requests"] for [engine] in figures] == [0, 7]
        names.addresses = [HOSTS[1]]
        wait_until(lambda: shown() == {HOSTS[1]: 7})


def test_a_dns_that_answers_nothing_takes_no_server_away(site: Site) -> None:
    site.serve_at(HOSTS[0])
    site.names.addresses = []
    for _ in range(20):
        assert site.gateway.complete().status == 200
    assert site.taking() == {HOSTS[0]: True}


def test_a_certificate_is_for_the_name_and_not_for_an_address() -> None:
    plain, secure = read_server_name("dns:///pods.llm:8001"), read_server_name("grpcs+dns:///pods.llm.:8001")
    assert access_of(plain, Access()) == Access()
    assert access_of(secure, Access(ca_file="ca.pem")) == Access(is_tls=True, ca_file="ca.pem", server_name="pods.llm")
    assert access_of(secure, Access(server_name="chat")).server_name == "chat"
