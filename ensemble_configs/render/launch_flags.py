# SPDX-License-Identifier: Apache-2.0
"""Flags of a deployment on `tritonserver`'s command line; the program that starts it adds paths and secrets."""

from collections.abc import Sequence
from typing import NamedTuple

from ensemble_configs.render.sticky_keys import sticky_headers
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.grpc_tls import GrpcTlsSpec
from ensemble_configs.spec.observability_spec import TracingSpec

Flags = list[tuple[str, str]]
CLIENT_SHM_FLAG = "allow-client-shm"

_TRACE_HEADERS = ("traceparent", "tracestate")
_STREAM_HEADER = "trireme-stream"  # from the frontends alone: they let no client's through
LOOPBACK = "127.0.0.1"
_NEVER = 2**31 - 1
_LEAST_LOAD_THREADS = 64  # enough for most, so that another release is no other flag


class PrivatePorts(NamedTuple):
    """Ports of a Triton behind frontends, on the loopback interface."""

    http: int
    grpc: int
    metrics: int


def launch_flags(spec: DeploymentSpec, private: PrivatePorts | None = None) -> Flags:
    """Return names without dashes, and values; a name may come several times.

    Args:
        private: ports behind frontends; None: clients reach Triton at the deployment's ports.
    """
    triton = spec.triton
    if private is not None:
        own = {"host": LOOPBACK, "http_port": private.http, "grpc_port": private.grpc, "metrics_port": private.metrics}
        triton = triton.model_copy(update={**own, "grpc_tls": None})
    # Of IPv6 its gRPC server puts ":PORT" behind the address, and its HTTP server (libevhtp) wants to be told.
    is_v6 = ":" in triton.host
    http_host, grpc_host = (f"ipv6:{triton.host}", f"[{triton.host}]") if is_v6 else (triton.host, triton.host)
    flags: dict[str, object] = {
        "model-control-mode": "explicit",
        "load-model": "*",
        # A client of an engine waits for its owner on the thread that loads it: with fewer threads than versions of
        # models clients could take all of them, and the owners that they wait for would not be loaded.
        "model-load-thread-count": max(_LEAST_LOAD_THREADS, _num_versions(spec)),
        "http-address": http_host,
        "http-port": triton.http_port,
        "grpc-address": grpc_host,
        "grpc-port": triton.grpc_port,
        "metrics-address": http_host,
        "metrics-port": triton.metrics_port,
        "grpc-keepalive-time": triton.keepalive_time_ms,
        "grpc-keepalive-timeout": triton.keepalive_timeout_ms,
        "grpc-keepalive-permit-without-calls": 1,  # connections without a stream do not pile up either
        "grpc-http2-max-pings-without-data": 0,  # 0: no limit; after Triton's 2 a silent stream is asked no more
        # Each object that is kept for the next request keeps the room of the largest message that it has held.
        "grpc-infer-allocation-pool-size": 0,
    }
    if private is not None:
        # Clients of gRPC's library ask with what they get how fast the line is. Triton does not know of what they get
        # past it, and would hang up; the frontend counts pings.
        flags["grpc-http2-max-ping-strikes"] = 0
    if triton.allow_client_shm:  # off is the default of the servers that have this flag, and others do not know it
        flags[CLIENT_SHM_FLAG] = "true"
    plain = [(name, str(value)) for name, value in flags.items()]
    return plain + _grpc_tls(triton.grpc_tls) + _rate_limit(spec) + _headers(spec, private) + _tracing(spec.tracing)


def _headers(spec: DeploymentSpec, private: PrivatePorts | None) -> Flags:
    """Return the headers that reach the models as request parameters, also those of a graph and on gRPC streams."""
    names = [*(_TRACE_HEADERS if spec.tracing else ()), *sticky_headers(spec)]
    if private is not None:
        return [("grpc-header-forward-pattern", _any_of([*names, _STREAM_HEADER]))]
    return [(f"{protocol}-header-forward-pattern", _any_of(names)) for protocol in ("grpc", "http") if names]


def _any_of(names: Sequence[str]) -> str:
    return f"(?i)^({'|'.join(names)})$"


def _grpc_tls(tls: GrpcTlsSpec | None) -> Flags:
    """Return Triton's own names of the TLS settings; with the flag of mTLS alone, 2.51 speaks TLS as well."""
    if tls is None:
        return []
    flags = [("grpc-server-cert", str(tls.cert_file)), ("grpc-server-key", str(tls.key_file))]
    if tls.client_ca_file is None:
        return [("grpc-use-ssl", "true"), *flags]
    return [("grpc-use-ssl-mutual", "true"), *flags, ("grpc-root-cert", str(tls.client_ca_file))]


def _num_versions(spec: DeploymentSpec) -> int:
    """Return how many versions all Triton models have together."""
    num_others = len(spec.extra_models) + len(spec.embedding_models)
    return sum(len(model.steps) * len(model.releases) for model in spec.models) + num_others


def _tracing(tracing: TracingSpec | None) -> Flags:
    """Return the flags of Triton's own spans, beside those of the models."""
    if tracing is None or not tracing.is_triton_traced:
        return []
    settings = [
        "mode=opentelemetry",
        "level=TIMESTAMPS",
        f"rate={_every(tracing.sample_ratio)}",
        f"opentelemetry,url={tracing.endpoint}/v1/traces",
        "opentelemetry,resource=service.name=triton",
    ]
    return [("trace-config", setting) for setting in settings]


def _every(ratio: float) -> int:
    """Return the interval that Triton counts in: of requests without a trace it takes one in so many."""
    return _NEVER if ratio <= 1 / _NEVER else round(1 / ratio)


def _rate_limit(spec: DeploymentSpec) -> Flags:
    """Return the flag that turns the rate limiter on if a model takes part.

    Off otherwise: with it every execution passes Triton's queue of instances, also those of other models.
    """
    limiters = [*(model.rate_limiter for model in spec.models), *(extra.rate_limiter for extra in spec.extra_models)]
    if not any(limiters):
        return []
    pools = [
        f"{pool.name}:{pool.count}" + ("" if pool.device is None else f":{pool.device}") for pool in spec.rate_limiter
    ]
    return [("rate-limit", "execution_count"), *(("rate-limit-resource", pool) for pool in pools)]
