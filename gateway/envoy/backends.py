# SPDX-License-Identifier: Apache-2.0
"""The backends of an Envoy: gateways or Tritons that serve alike, their weights, and the TLS to them."""

import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from clients.envoy_parts import Address, read_address
from trireme.base.errors import RequestError

MOST_WEIGHT = 1000


class BackendTls(NamedTuple):
    """The TLS of connections to backends.

    Attributes:
        ca_file: authorities that are trusted, where Envoy runs.
        name: that their certificates must have; "": the host of each address.
        cert_file, key_file: certificate that Envoy shows, and its private key; None: none.
    """

    ca_file: Path
    name: str = ""
    cert_file: Path | None = None
    key_file: Path | None = None


class Backend(NamedTuple):
    """A backend, and its share of the requests beside those of the others."""

    address: Address
    weight: int = 1


class Backends(NamedTuple):
    """Backends that serve alike.

    Attributes:
        name: of their cluster in Envoy.
        tls: None: connections have none.
    """

    name: str
    members: tuple[Backend, ...]
    tls: BackendTls | None = None

    @property
    def has_weights(self) -> bool:
        """Return whether some get more requests than others."""
        return len({member.weight for member in self.members}) > 1


class GivenTls(NamedTuple):
    """The options of TLS to one kind of backends, as they are on the command line."""

    ca_file: Path | None = None
    name: str | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


def read_backends(
    urls: Sequence[str], *, name: str, option: str, schemes: tuple[str, str], given: GivenTls
) -> Backends | None:
    """Return the backends that options such as `--gateway https://g1:8443=3` name; None: there are none.

    Args:
        name: of the cluster in Envoy.
        option: such as `--gateway`; the options of TLS begin with it.
        schemes: of addresses without and with TLS.

    Raises:
        RequestError: an address or a weight is none, or is there twice, or the options of TLS do not fit.
    """
    if not urls:
        return None
    kinds = {_scheme(url, option, schemes) for url in urls}
    if len(kinds) > 1:
        raise RequestError(
            f"{option} has addresses with TLS ({schemes[1]}://) and without; give those of one kind, for they share "
            "the settings of their connections",
            field=option.lstrip("-"),
        )
    members = tuple(_read_one(url, option) for url in urls)
    addresses = [member.address for member in members]
    for url, address in zip(urls, addresses, strict=True):
        if addresses.count(address) > 1:
            raise RequestError(f"{option} {url} is given twice; name each once, and its weight as HOST:PORT=WEIGHT",
                               field=option.lstrip("-"), value=url)  # fmt: skip
    return Backends(name, members, _tls(members, kinds == {schemes[1]}, option, given))


def _scheme(url: str, option: str, schemes: tuple[str, str]) -> str:
    scheme, has_scheme, _ = url.partition("://")
    if not has_scheme:
        return schemes[0]
    if scheme not in schemes:
        raise RequestError(
            f"{option} must be HOST:PORT, {schemes[0]}://HOST:PORT or {schemes[1]}://HOST:PORT with TLS, each with "
            f"=WEIGHT behind it or not, got {url!r}",
            field=option.lstrip("-"),
            value=url,
        )
    return scheme


def _read_one(url: str, option: str) -> Backend:
    place, has_weight, weight = url.rpartition("://")[2].partition("=")
    if has_weight and not (weight.isascii() and weight.isdecimal() and 1 <= int(weight) <= MOST_WEIGHT):
        raise RequestError(
            f"the weight of {option} must be a whole number from 1 to {MOST_WEIGHT}, got {url!r}; write such as "
            "host:8080=3, and leave a backend out that is to get nothing",
            field=option.lstrip("-"),
            value=url,
        )
    return Backend(read_address(place.rstrip("/"), field=option), int(weight) if has_weight else 1)


def _tls(members: Sequence[Backend], is_tls: bool, option: str, given: GivenTls) -> BackendTls | None:
    stray = next((field for field, value in given._asdict().items() if value is not None), None)
    if not is_tls:
        if stray is not None:
            raise RequestError(
                f"{option}-{stray.replace('_', '-')} is for TLS, and the addresses of {option} have none; write "
                "https:// or grpcs:// before them, or leave the option out",
                field=f"{option.lstrip('-')}_{stray}",
            )
        return None
    if given.ca_file is None:
        raise RequestError(
            f"{option}-ca-file is missing: {option} has TLS, and Envoy trusts no certificate by itself; name the PEM "
            "file of its authority, such as /etc/ssl/certs/ca-certificates.crt for public ones",
            field=f"{option.lstrip('-')}_ca_file",
        )
    if (given.cert_file is None) != (given.key_file is None):
        missing = "cert" if given.cert_file is None else "key"
        raise RequestError(
            f"{option}-{missing}-file is missing: a certificate goes with its private key; name both or neither",
            field=f"{option.lstrip('-')}_{missing}_file",
        )
    bare = [member.address.host for member in members if given.name is None and _is_ip(member.address.host)]
    if bare:
        raise RequestError(
            f"{option}-name is missing: {bare[0]} is an address, and a certificate is for a name; give the name that "
            f"is in the certificates of {option}",
            field=f"{option.lstrip('-')}_name",
        )
    return BackendTls(given.ca_file, given.name or "", given.cert_file, given.key_file)


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
