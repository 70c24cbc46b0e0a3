# SPDX-License-Identifier: Apache-2.0
"""Envoy's clusters: backends with their health, their limits and the TLS to them.

The chart's own Envoy (helm/trireme/templates/envoy) watches servers by the same rules.
"""

from clients.envoy_parts import EXTENSIONS, Address, socket_address
from gateway.envoy.backends import Backend, Backends, BackendTls
from gateway.envoy.settings import EnvoySettings

_CONNECT_S = 2
_CHECK_S, _CHECKS_FAILED = 1, 3
_RESOLVE_S = 5
_KEEPALIVE_S, _KEEPALIVE_PROBES, _KEEPALIVE_PAUSE_S = 10, 3, 5
# Linux sends what no node acknowledges again for a quarter of an hour; no longer than keepalives notice a vanished one.
_SOL_TCP, _TCP_USER_TIMEOUT = 6, 18
_UNACKNOWLEDGED_MS = 1000 * (_KEEPALIVE_S + _KEEPALIVE_PROBES * _KEEPALIVE_PAUSE_S)
_IDLE_S = 60  # of a connection; a gateway ends those that are idle for 75 s, maybe while a request is on its way
_EJECTED_S, _MOST_EJECTED_PERCENT = 10, 50
_MOST_COPIES = 64  # a mirror that hangs keeps no more
_RETRY_PERCENT, _LEAST_RETRIES = 20, 16


def cluster(
    backends: Backends, settings: EnvoySettings, *, is_grpc: bool, is_mirror: bool = False
) -> dict[str, object]:
    """Return the cluster of backends."""
    most = _MOST_COPIES if is_mirror else settings.max_requests * len(backends.members)
    return {
        "name": backends.name,
        "cluster_type": {
            "name": "envoy.cluster.dns",
            "typed_config": {
                "@type": f"{EXTENSIONS}.clusters.dns.v3.DnsCluster",
                "dns_refresh_rate": f"{_RESOLVE_S}s",
                "dns_lookup_family": "V4_PREFERRED",
            },
        },
        "connect_timeout": f"{_CONNECT_S}s",
        # The fewest running requests; with weights in turns, for there a backend gets its share by its weight alone.
        "lb_policy": "ROUND_ROBIN" if backends.has_weights else "LEAST_REQUEST",
        # Never to one that is known to be dead, unless all seem to be: then it is the checks that fail.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "circuit_breakers": {"thresholds": [_limits(most)]},
        "upstream_connection_options": {
            "tcp_keepalive": {
                "keepalive_probes": _KEEPALIVE_PROBES,
                "keepalive_time": _KEEPALIVE_S,
                "keepalive_interval": _KEEPALIVE_PAUSE_S,
            }
        },
        "upstream_bind_config": {
            "socket_options": [
                {
                    "level": _SOL_TCP,
                    "name": _TCP_USER_TIMEOUT,
                    "int_value": _UNACKNOWLEDGED_MS,
                    "state": "STATE_PREBIND",
                }
            ]
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": _http(is_grpc)},
        **({} if backends.tls is None else {"transport_socket": _transport(backends.tls, is_grpc=is_grpc)}),
        "health_checks": [_health_check(is_grpc)],
        "outlier_detection": _outliers(),
        "load_assignment": {
            "cluster_name": backends.name,
            "endpoints": [{"lb_endpoints": [_endpoint(member, backends.tls) for member in backends.members]}],
        },
    }


def _limits(most: int) -> dict[str, object]:
    return {
        "max_connections": most,
        "max_pending_requests": most,
        "max_requests": most,
        "retry_budget": {"budget_percent": {"value": _RETRY_PERCENT}, "min_retry_concurrency": _LEAST_RETRIES},
    }


def _http(is_grpc: bool) -> dict[str, object]:
    kind: dict[str, object] = {"http2_protocol_options": {}} if is_grpc else {"http_protocol_options": {}}
    return {
        "@type": f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
        "common_http_protocol_options": {"idle_timeout": f"{_IDLE_S}s"},
        "explicit_http_config": kind,
    }


def _health_check(is_grpc: bool) -> dict[str, object]:
    """Return the check each second: Triton's own word by gRPC's health service, or that of a gateway."""
    kind: dict[str, object] = (
        {"grpc_health_check": {}} if is_grpc else {"http_health_check": {"path": "/health/ready?models=any"}}
    )
    return {
        "timeout": "2s",
        "interval": f"{_CHECK_S}s",
        "no_traffic_interval": f"{_CHECK_S}s",
        "unhealthy_threshold": _CHECKS_FAILED,
        "healthy_threshold": 1,
        **kind,
    }


def _outliers() -> dict[str, object]:
    """Return who is ejected: whose connections fail. A refusal is an answer, and the busy are not taken for dead."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": _CHECKS_FAILED,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "interval": "1s",
        "base_ejection_time": f"{_EJECTED_S}s",
        "max_ejection_percent": _MOST_EJECTED_PERCENT,
        "always_eject_one_host": True,
    }


def _endpoint(member: Backend, tls: BackendTls | None) -> dict[str, object]:
    endpoint: dict[str, object] = {"address": socket_address(Address(*member.address))}
    if tls is not None:
        endpoint["hostname"] = tls.name or member.address.host
    return {"endpoint": endpoint, "load_balancing_weight": member.weight}


def _transport(tls: BackendTls, *, is_grpc: bool) -> dict[str, object]:
    """Return the TLS to backends; each has to show a certificate for its name."""
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": ["h2"] if is_grpc else ["http/1.1"],
        "validation_context": {"trusted_ca": watched_file(str(tls.ca_file))},
    }
    if tls.cert_file is not None and tls.key_file is not None:
        common["tls_certificates"] = [certificate(str(tls.cert_file), str(tls.key_file))]
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{EXTENSIONS}.transport_sockets.tls.v3.UpstreamTlsContext",
            "auto_host_sni": True,
            "auto_sni_san_validation": True,
            "common_tls_context": common,
        },
    }


def watched_file(path: str) -> dict[str, object]:
    """Return a file of certificates that is read again when its folder changes, as a Secret's does."""
    return {"filename": path, "watched_directory": {"path": path.rpartition("/")[0] or "/"}}


def certificate(cert_file: str, key_file: str) -> dict[str, object]:
    """Return a certificate with its private key, which is read again when its folder changes."""
    return {
        "certificate_chain": {"filename": cert_file},
        "private_key": {"filename": key_file},
        "watched_directory": {"path": cert_file.rpartition("/")[0] or "/"},
    }
