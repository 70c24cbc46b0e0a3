# SPDX-License-Identifier: Apache-2.0
"""A real Envoy that lets in clients with a key, over TLS, or over TLS with a client certificate; it refuses all others.

Each listener has its own certificate and its own check of the key, by filters that Envoy brings: `rbac` on the bearer
token (403), `api_key_auth` on a header of its own (401).
"""

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from certificates import Pair
from running_envoy import RunningEnvoy

TOKEN = "s3cret-token-of-the-tests"
KEY = "s3cret-key-of-the-tests"
KEY_HEADER = "x-api-key"


class Backend(NamedTuple):
    """A server that paths which begin with `prefix` lead to."""

    prefix: str
    port: int
    is_http2: bool = False


class Listener(NamedTuple):
    """A port with its own checks; `client_ca`: client certificates of that authority are asked for."""

    port: int
    pair: Pair
    client_ca: Path | None = None
    wants_bearer: bool = False
    wants_key: bool = False


class GuardedEnvoy(RunningEnvoy):
    """An Envoy that runs inside a `with`."""

    def __init__(self, folder: Path, listeners: list[Listener], backends: list[Backend]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "static_resources": {
                "listeners": [_listener(each, backends) for each in listeners],
                "clusters": [_cluster(each) for each in backends],
            }
        }
        path = folder / "envoy.json"
        path.write_text(json.dumps(config))
        super().__init__(path, lambda: all(_answers(each.port) for each in listeners))


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def _typed(name: str, **fields: object) -> dict[str, object]:
    return {"@type": f"type.googleapis.com/{name}", **fields}


def _listener(listener: Listener, backends: list[Backend]) -> dict[str, Any]:
    filters: list[Mapping[str, object]] = []
    if listener.wants_bearer:
        filters.append({"name": "rbac", "typed_config": _bearer_check()})
    if listener.wants_key:
        filters.append({"name": "api_key_auth", "typed_config": _key_check()})
    filters.append(
        {"name": "router", "typed_config": _typed("envoy.extensions.filters.http.router.v3.Router")},
    )
    routes = [
        {"match": {"prefix": each.prefix}, "route": {"cluster": each.prefix, "timeout": "0s"}} for each in backends
    ]
    manager = _typed(
        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=str(listener.port),
        route_config={"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
        http_filters=filters,
    )
    chain = {
        "filters": [{"name": "http", "typed_config": manager}],
        "transport_socket": {"name": "tls", "typed_config": _tls(listener)},
    }
    address = {"socket_address": {"address": "127.0.0.1", "port_value": listener.port}}
    return {"name": str(listener.port), "address": address, "filter_chains": [chain]}


def _tls(listener: Listener) -> dict[str, object]:
    common: dict[str, object] = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificates": [
            {
                "certificate_chain": {"filename": str(listener.pair.cert)},
                "private_key": {"filename": str(listener.pair.key)},
            }
        ],
    }
    if listener.client_ca is not None:
        common["validation_context"] = {"trusted_ca": {"filename": str(listener.client_ca)}}
    return _typed(
        "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
        common_tls_context=common,
        require_client_certificate=listener.client_ca is not None,
    )


def _bearer_check() -> dict[str, object]:
    header = {"name": "authorization", "string_match": {"exact": f"Bearer {TOKEN}"}}
    policy = {"permissions": [{"any": True}], "principals": [{"header": header}]}
    return _typed(
        "envoy.extensions.filters.http.rbac.v3.RBAC", rules={"action": "ALLOW", "policies": {"bearer": policy}}
    )


def _key_check() -> dict[str, object]:
    return _typed(
        "envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth",
        credentials=[{"key": KEY, "client": "tests"}],
        key_sources=[{"header": KEY_HEADER}],
    )


def _cluster(backend: Backend) -> dict[str, object]:
    address = {"socket_address": {"address": "127.0.0.1", "port_value": backend.port}}
    http2 = _typed(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}} if backend.is_http2 else {"http_protocol_options": {}},
    )
    return {
        "name": backend.prefix,
        "type": "STATIC",
        "connect_timeout": "5s",
        "load_assignment": {
            "cluster_name": backend.prefix,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
    }
