# SPDX-License-Identifier: Apache-2.0
"""The messages of `trireme serve` to its frontends, as lines of JSON on a socket, and their answers."""

from typing import Literal

import msgspec


class Upstream(msgspec.Struct, frozen=True, tag="upstream"):
    """A Triton that has been started; its ports are on the loopback interface, for the frontends alone."""

    http_port: int
    grpc_port: int
    metrics_port: int
    run_dir: str  # folder of its models' control channels
    key_header: str
    key: str  # the control key of its restricted APIs
    own_models: frozenset[str]  # models with all inputs in the contract
    has_open_shared_memory: bool = False
    has_direct_responses: bool = False  # models send theirs to the frontend, past Triton
    sticky_headers: tuple[str, ...] = ()  # they go on to the models
    sticky_parameters: tuple[str, ...] = ()  # of requests, beside those of the contract


class Down(msgspec.Struct, frozen=True, tag="down"):
    """The message that there is no Triton now."""


class Refuse(msgspec.Struct, frozen=True, tag="refuse"):
    """The order to take no requests of models any more."""

    message: str
    reason: str


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """The question that a living frontend answers with a line."""


BACKLOG = 1024  # connections that wait while a frontend is busy, or started again

FrontendMessage = Upstream | Down | Refuse | Ping


class Setting(msgspec.Struct, frozen=True):
    """The settings that a frontend is started with."""

    kind: Literal["grpc", "http"]
    listeners: dict[str, int]  # descriptors of listening sockets: grpc, or http and metrics
    max_request_bytes: int
    max_connections: int
    cert_file: str | None = None  # with key_file: TLS
    key_file: str | None = None
    client_ca_file: str | None = None  # clients have to show certificates of that authority
    log_format: Literal["text", "json"] = "text"
