# SPDX-License-Identifier: Apache-2.0
"""Triton listens on addresses: a host's name is looked up before."""

import ipaddress

import pytest

from serving.triton.listening_address import listening_address
from trireme.base.errors import SpecError


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1", "::"])
def test_an_address_stays_as_it_is(host: str) -> None:
    assert listening_address(host) == host


def test_a_name_becomes_its_address() -> None:
    assert ipaddress.ip_address(listening_address("localhost")).is_loopback


def test_a_name_that_nobody_knows_is_refused_with_the_next_step() -> None:
    with pytest.raises(SpecError, match=r"triton.host 'no-such-name.invalid' has no address .*name an address"):
        listening_address("no-such-name.invalid")
