# SPDX-License-Identifier: Apache-2.0
"""The settings of an Envoy before gateways and Tritons."""

from pathlib import Path
from typing import NamedTuple

from clients.envoy_parts import Address
from gateway.envoy.backends import Backends


class ListenerTls(NamedTuple):
    """The TLS of callers.

    Attributes:
        client_ca_file: authorities of the certificates that callers have to bring; None: they bring none.
    """

    cert_file: Path
    key_file: Path
    client_ca_file: Path | None = None


class Front(NamedTuple):
    """A listener, and those behind it.

    Attributes:
        mirror: those that get copies of requests, whose answers nobody sees; None: nobody does.
    """

    listen: Address
    backends: Backends
    mirror: Backends | None = None


class Concurrency(NamedTuple):
    """The bounds of adaptive concurrency.

    Attributes:
        least: requests at a time that are never refused, whatever their answers' times say.
        most: that are let through at a time.
        window_s: between two measurements of how long an answer takes that waits for nothing.
    """

    least: int
    most: int
    window_s: float = 60.0


class EnvoySettings(NamedTuple):
    """The settings of one Envoy.

    Attributes:
        name: of the deployment.
        gateways: None: there are none; so of `servers`.
        admin: on the loopback interface alone.
        mirror_percent: of requests that are copied.
        max_requests: that run at a backend at a time; of all of them so many times their number.
        retries: of what has not begun.
        idle_s: a stream on which nothing moves for so long is ended.
        max_body_bytes: of a request that can be sent again.
        access_log: file; None: no log is written.
        concurrency: of the gateways; None: it is not adaptive.
    """

    name: str
    gateways: Front | None
    servers: Front | None
    admin: Address
    tls: ListenerTls | None = None
    mirror_percent: float = 0.0
    max_requests: int = 4096
    retries: int = 1
    idle_s: float = 900.0
    max_body_bytes: int = 8 << 20
    access_log: Path | None = Path("/dev/stdout")
    concurrency: Concurrency | None = None
