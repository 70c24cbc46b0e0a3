# SPDX-License-Identifier: Apache-2.0
"""A whole configuration of Envoy: a listener for gRPC, two endpoints, and the routes, in it or in a file beside it."""

from pathlib import Path

from clients.envoy_parts import EXTENSIONS, Address, socket_address
from clients.rollout.export.envoy_routes import CANDIDATE, ROUTES, STABLE, envoy_routes

_CONNECT_S = 5
_MANY = 1 << 20  # Envoy would refuse request 1025 by itself; how many run is the server's to say
_PING_S, _PONG_S = 30, 10  # a client that vanished without a word is noticed, and its stream ends


def envoy_bootstrap(
    *,
    stable: Address,
    candidate: Address,
    listen: Address,
    admin: Address | None,
    routes: Path | None,
    share: float,
    salt: str,
) -> dict[str, object]:
    """Return the configuration that `envoy -c` takes.

    Args:
        admin: address of Envoy's admin interface, which can also stop Envoy; None: there is none.
        routes: file that Envoy reads its routes from, and reads again when another file takes its place; None: the
            routes are part of the configuration, and the share stays what it is.

    Raises:
        RequestError: the share is finer than the weights, or the salt cannot stand in a pattern's replacement.
    """
    manager = {
        "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": ROUTES,
        "stream_idle_timeout": "0s",
        "http2_protocol_options": {"connection_keepalive": {"interval": f"{_PING_S}s", "timeout": f"{_PONG_S}s"}},
        **({"route_config": envoy_routes(share, salt=salt)} if routes is None else {"rds": _from_file(routes)}),
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{EXTENSIONS}.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": ROUTES,
        "address": socket_address(listen),
        "filter_chains": [
            {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
        ],
    }
    return {
        **({"admin": {"address": socket_address(admin)}} if admin else {}),
        "node": {"id": ROUTES, "cluster": ROUTES},
        "static_resources": {
            "listeners": [listener],
            "clusters": [_cluster(STABLE, stable), _cluster(CANDIDATE, candidate)],
        },
    }


def _from_file(path: Path) -> dict[str, object]:
    source = {"resource_api_version": "V3", "path_config_source": {"path": str(path)}}
    return {"route_config_name": ROUTES, "config_source": source}


def _cluster(name: str, address: Address) -> dict[str, object]:
    limits = {"max_connections": _MANY, "max_pending_requests": _MANY, "max_requests": _MANY}
    return {
        "name": name,
        "type": "STRICT_DNS",
        "connect_timeout": f"{_CONNECT_S}s",
        "circuit_breakers": {"thresholds": [limits]},
        "upstream_connection_options": {"tcp_keepalive": {"keepalive_time": _PING_S, "keepalive_interval": _PONG_S}},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            }
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket_address(address)}}]}],
        },
    }
