# SPDX-License-Identifier: Apache-2.0
"""The address of the control of a server on another machine, and what may be wrong with it."""

import socket
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from trireme.base.errors import RequestError, Unavailable
from trireme.base.http_servers.http_access import is_loopback


class ControlAddress(NamedTuple):
    """The parts of a control's address."""

    host: str
    port: int
    is_tls: bool

    @property
    def named(self) -> str:
        """Return host and port, as in an address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Return the address."""
        return f"{'https' if self.is_tls else 'http'}://{self.named}"


def control_address(url: str, option: str = "--server") -> ControlAddress:
    """Return the parts of the address of a server's control.

    Args:
        option: what names the address, for people.

    Raises:
        RequestError: it is no such address, or one on which others could read the key.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # such as a port of 70000
        parts, host, port = urlsplit(""), "", None
    is_bare = parts.path in ("", "/") and not (parts.query or parts.fragment or "@" in parts.netloc)
    is_host = bool(host) and not any(char.isspace() for char in host)
    if parts.scheme not in ("https", "http") or not is_host or not is_bare or not port or not url.isprintable():
        raise RequestError(
            f"{option} must be the address of a server's control, https://HOST:PORT with the port of `trireme serve "
            f"--remote-port` (1 to 65535) and nothing behind it, or a folder; got {_without_user(url)!r}",
            field=field_of(option),
            value=_without_user(url),
        )
    if parts.scheme == "http" and not is_loopback(host):
        raise RequestError(
            f"{option} {url} has no TLS, and the key could be read on its way; write https://, or http:// with a host "
            "of this machine, such as 127.0.0.1",
            field=field_of(option),
            value=url,
        )
    return ControlAddress(host, port, parts.scheme == "https")


def addresses_of(host: str, port: int) -> Sequence[str]:
    """Return the addresses that a name has, sorted; of one family, since one server may have one of each.

    Raises:
        Unavailable: the name has none, or nobody says.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as exc:  # UnicodeError: an empty or an overlong part of the name
        raise Unavailable(f"{host} has no address: {exc}", reason="unreachable") from exc
    first = min(family for family, *_ in found)  # IPv4 before IPv6
    return sorted({str(address[0]) for family, *_, address in found if family is first})


def field_of(option: str) -> str:
    """Return the field of an error about an option."""
    return option.removeprefix("--").replace("-", "_")


def _without_user(url: str) -> str:
    return url.rpartition("@")[2] if "@" in url else url
