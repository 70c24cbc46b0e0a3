# SPDX-License-Identifier: Apache-2.0
"""Names that stand for servers: what such a URL means, and which addresses a name has."""

import asyncio

import pytest

from trireme.base.errors import RequestError
from trireme.base.server_names import addresses_of, is_server_name, read_server_name


@pytest.mark.parametrize(
    "url", ["dns:///", "dns:///pods", "dns:///pods:0", "dns:///pods:70000", "dns:///a/b:1", "dns:///:8001"]
)
def test_a_url_that_is_no_name_of_servers_is_refused_with_what_to_write(url: str) -> None:
    assert is_server_name(url)
    with pytest.raises(RequestError, match=r"--url must be dns:///NAME:PORT.*write such as") as refused:
        read_server_name(url)
    assert refused.value.facts["value"] == url


def test_a_server_of_a_name_has_the_names_port_and_its_own_address() -> None:
    plain, secure = read_server_name("dns:///pods.llm:8001"), read_server_name("grpcs+dns:///pods.llm.:8001")
    pages = read_server_name("dns:///pods.llm:8002")
    assert pages.page_of(plain.url_of("10.0.0.1")) == "http://10.0.0.1:8002/metrics"
    assert pages.page_of(secure.url_of("fd00::1")) == "http://[fd00::1]:8002/metrics"
    assert [plain.url_of("10.0.0.1"), secure.url_of("fd00::1")] == ["10.0.0.1:8001", "grpcs://[fd00::1]:8001"]
    assert secure.certified_host == "pods.llm"


def test_the_addresses_are_those_of_the_resolver() -> None:
    def of(host: str) -> list[str]:
        return asyncio.run(addresses_of(read_server_name(f"dns:///{host}:8001")))

    assert "127.0.0.1" in of("localhost")
    assert of("127.0.0.7") == ["127.0.0.7"]
    assert of("no-such-host.invalid") == []
