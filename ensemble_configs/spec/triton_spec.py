# SPDX-License-Identifier: Apache-2.0
"""The server around the models, as typed data."""

from pydantic import Field, model_validator

from ensemble_configs.spec.base import Boolean, NotNegative, Number, Port, Positive, Spec
from ensemble_configs.spec.grpc_tls import GrpcTlsSpec


class TritonSpec(Spec):
    """Settings of the server around the models; options of the command line go before its ports."""

    host: str = Field(
        default="127.0.0.1", pattern=r"^[0-9A-Za-z.:_-]+$", max_length=253, description="address or name to listen on"
    )
    http_port: Port = Field(default=8000, description="port of KServe over HTTP")
    grpc_port: Port = Field(default=8001, description="port of KServe over gRPC")
    grpc_tls: GrpcTlsSpec | None = Field(
        default=None, description="certificates of the gRPC endpoint; Triton's HTTP endpoint has no TLS"
    )
    metrics_port: Port = Field(default=8002, description="port of the metrics for Prometheus")
    triton_max_batch_size: Positive = Field(
        default=256, description="prompts that Triton lets through in one request; a request may hold 128 of them"
    )
    keepalive_time_ms: Positive = Field(
        default=10_000, description="silence on a gRPC connection after which the server asks whether its peer is there"
    )
    keepalive_timeout_ms: Positive = Field(
        default=5_000, description="how long it waits for the answer before it ends the connection and its streams"
    )
    is_guarded: Boolean = Field(
        default=True,
        description="frontends of trireme's own take the three ports, and check what clients send before Triton reads "
        "it (docs/frontend.md); false: Triton takes the ports itself, and a client can end it",
    )
    max_request_bytes: Positive = Field(
        default=64 * 2**20, description="the longest request, whether a message of gRPC or a body over HTTP"
    )
    max_connections: Positive = Field(default=4096, description="connections of clients at once, for each port")
    has_direct_responses: Boolean = Field(
        default=True,
        description="models send the responses of gRPC streams to the frontends themselves, all but the last of each "
        "request; false: Triton takes every response (docs/frontend.md)",
    )
    allow_client_shm: Boolean = Field(
        default=False,
        description="clients of this machine may pass tensors in shared memory; for servers that have "
        "--allow-client-shm (Triton 26.05), others are refused",
    )
    hang_timeout_s: Number = Field(
        default=10.0,
        ge=1,
        le=86_400,
        description="a server or model process that is silent for so long is taken for dead",
    )
    max_restarts: NotNegative = Field(
        default=5, description="of a server that died, within restart_window_s; after that `trireme serve` ends"
    )
    restart_window_s: Number = Field(
        default=600.0, gt=0, le=1e9, description="time in which restarts are counted, for max_restarts"
    )
    restart_backoff_s: Number = Field(
        default=1.0,
        ge=0,
        le=60,
        description="before the second restart in the window, doubled for each one more; the first is at once",
    )

    @model_validator(mode="after")
    def _ports_differ(self) -> "TritonSpec":
        ports = [self.http_port, self.grpc_port, self.metrics_port]
        if len(set(ports)) < len(ports):
            raise ValueError(f"http_port, grpc_port and metrics_port must differ, got {ports}")
        return self
