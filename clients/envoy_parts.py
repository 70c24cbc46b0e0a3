# SPDX-License-Identifier: Apache-2.0
"""The parts that all of our configurations of Envoy have: addresses, and the names of Envoy's extensions."""

from pathlib import Path
from typing import NamedTuple

from trireme.base.errors import RequestError

EXTENSIONS = "type.googleapis.com/envoy.extensions"


class Address(NamedTuple):
    """The host and port that something listens on."""

    host: str
    port: int


def read_address(text: str, *, field: str) -> Address:
    """Return the address that a text such as `host:port` or `[::1]:port` means.

    Raises:
        RequestError: the text is no address.
    """
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_host = bool(host) and not set(host) & set("/[]@ ") and (":" in host) == is_bracketed
    if not is_host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise RequestError(
            f"{field} must be HOST:PORT, such as triton-stable:8001 or [::1]:8001, got {text!r}",
            field=field,
            value=text,
        )
    return Address(host, int(port))


def socket_address(address: Address) -> dict[str, object]:
    """Return an address as Envoy has it."""
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def check_yaml_name(path: Path, field: str) -> None:
    """Check that a file's name says YAML, for Envoy tells a file's format by its name.

    Raises:
        RequestError: Envoy would not take the file for YAML.
    """
    if path.suffix not in (".yaml", ".yml"):
        raise RequestError(
            f"{field} must end with .yaml or .yml, by which Envoy knows what it is; got {path}", field=field, value=path
        )
