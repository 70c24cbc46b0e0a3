# SPDX-License-Identifier: Apache-2.0
"""Pages of metrics over https, with an authority, a name and a key of their own, in real handshakes."""

import asyncio
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority, Pair
from metrics_page import metrics_page
from running_gateway import RunningGateway

from clients.access import Access
from gateway.live.server_figures import MetricsPage, ServerFigures
from gateway.served_models import ServedModel
from trireme.base.free_ports import free_ports

MODEL = ServedModel("demo", "ensemble", 100)
METRICS = """\
trireme_engine_up{model="tensorrt_llm",version="1"} 1
trireme_requests_running{model="tensorrt_llm",version="1"} 3
"""
KEY = "k" * 32


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.server()


@pytest.fixture
def keys() -> list[str | None]:
    return []


def context_of(pair: Pair, *, clients: Path | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert, pair.key)
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    return context


@pytest.fixture
def address(pair: Pair, keys: list[str | None]) -> Iterator[str]:
    with metrics_page(lambda: METRICS, tls=context_of(pair), keys=keys) as found:
        yield found


def read(url: str, access: Access) -> ServerFigures:
    return asyncio.run(MetricsPage(url, [MODEL], access).figures())


def test_a_page_is_read_by_its_own_authority_with_the_key(
    address: str, authority: Authority, keys: list[str | None], tmp_path: Path
) -> None:
    (tmp_path / "key.txt").write_text(KEY)
    found = read(f"https://{address}/metrics", Access(ca_file=str(authority.ca), token_file=str(tmp_path / "key.txt")))
    assert found.why_not == ""
    assert [(engine.model, engine.running_requests) for engine in found.engines] == [("demo", 3)]
    assert keys == [f"Bearer {KEY}"]


def test_no_key_is_sent_to_a_page_that_is_not_trusted(address: str, keys: list[str | None], tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text(KEY)
    others = Authority(tmp_path / "others", "others")
    for access in (Access(is_tls=True), Access(ca_file=str(others.ca), token_file=str(tmp_path / "key.txt"))):
        found = read(f"https://{address}/metrics", access)
        assert found.engines == []
        assert address in found.why_not
        assert "authority" in found.why_not or "trust" in found.why_not
    assert keys == []


def test_a_page_has_the_name_that_is_expected_of_it(authority: Authority) -> None:
    named = context_of(authority.server("named", hosts=("llm.example.com",)))
    with metrics_page(lambda: METRICS, tls=named) as address:
        url = f"https://{address}/metrics"
        assert "name" in read(url, Access(ca_file=str(authority.ca))).why_not
        assert read(url, Access(ca_file=str(authority.ca), server_name="llm.example.com")).why_not == ""


def test_a_page_that_wants_a_certificate_is_shown_one(authority: Authority, pair: Pair) -> None:
    client = authority.client()
    with metrics_page(lambda: METRICS, tls=context_of(pair, clients=authority.ca)) as address:
        url = f"https://{address}/metrics"
        assert read(url, Access(ca_file=str(authority.ca))).engines == []
        access = Access(ca_file=str(authority.ca), cert_file=str(client.cert), key_file=str(client.key))
        assert read(url, access).why_not == ""


def test_a_page_without_tls_is_told(authority: Authority) -> None:
    with metrics_page(lambda: METRICS) as address:
        found = read(f"https://{address}/metrics", Access(ca_file=str(authority.ca)))
    assert found.engines == []
    assert "TLS" in found.why_not


def test_an_authority_that_is_replaced_is_read_with_the_next_look(authority: Authority, tmp_path: Path) -> None:
    """A gateway runs for longer than its servers' certificates."""
    trusted = tmp_path / "ca.crt"
    trusted.write_bytes(authority.ca.read_bytes())
    others = Authority(tmp_path / "others", "others")
    now_s = [10.0]

    async def look() -> list[str]:
        page = MetricsPage(f"https://{address}/metrics", [MODEL], Access(ca_file=str(trusted)), lambda: now_s[0])
        found = [(await page.figures()).why_not]
        trusted.write_bytes(others.ca.read_bytes())
        now_s[0] += 2
        return [*found, (await page.figures()).why_not]

    with metrics_page(lambda: METRICS, tls=context_of(others.server())) as address:
        before, after = asyncio.run(look())
    assert before
    assert after == ""


def test_a_gateway_shows_the_figures_of_a_page_by_the_access_to_its_server(address: str, authority: Authority) -> None:
    """The server itself is away, and says nothing of its figures."""
    [port] = free_ports(1)
    with RunningGateway(
        f"grpcs://127.0.0.1:{port}",
        models=(MODEL,),
        server_access=Access(ca_file=str(authority.ca)),
        metrics_urls=(f"https://{address}/metrics",),
    ) as gateway:
        status: Any = gateway.call("GET", "/admin/status").json
    [server] = status["servers"]
    assert server["figures"]["why_not"] == ""
    assert server["figures"]["engines"][0]["running_requests"] == 3
    assert server["taking_requests_for"] == []
