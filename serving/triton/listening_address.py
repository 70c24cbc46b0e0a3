# SPDX-License-Identifier: Apache-2.0
"""The address that a host's name stands for, as Triton's HTTP server takes addresses alone."""

import ipaddress
import socket

from trireme.base.errors import SpecError


def listening_address(host: str) -> str:
    """Return the first address of a name; an address stays as it is.

    Triton 2.51 listens for HTTP on 255.255.255.255 where it gets a name, says that it has started, and nobody reaches
    it.

    Raises:
        SpecError: the name has no address here.
    """
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
        except OSError as exc:
            raise SpecError(
                f"triton.host {host!r} has no address on this machine ({exc.strerror or exc}); name an address, such "
                "as 0.0.0.0, or a name that this machine knows",
                field="triton.host",
                value=host,
            ) from exc
    return host
