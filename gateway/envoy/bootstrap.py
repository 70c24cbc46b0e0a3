# SPDX-License-Identifier: Apache-2.0
"""A whole configuration of an Envoy before several gateways, or several Tritons, as `envoy -c` takes it."""

from clients.envoy_parts import socket_address
from gateway.envoy.clusters import cluster
from gateway.envoy.listeners import gateway_listener, server_listener
from gateway.envoy.settings import EnvoySettings, Front

_MOST_CONNECTIONS = 50_000
_MONITORS = "type.googleapis.com/envoy.extensions.resource_monitors"


def bootstrap(settings: EnvoySettings) -> dict[str, object]:
    """Return the configuration."""
    listeners: list[dict[str, object]] = []
    clusters: list[dict[str, object]] = []
    if settings.gateways is not None:
        listeners.append(gateway_listener(settings.gateways, settings))
        clusters += _clusters(settings.gateways, settings, is_grpc=False)
    if settings.servers is not None:
        listeners.append(server_listener(settings.servers, settings))
        clusters += _clusters(settings.servers, settings, is_grpc=True)
    return {
        "node": {"id": settings.name, "cluster": settings.name},
        "admin": {"address": socket_address(settings.admin)},
        "overload_manager": {
            "resource_monitors": [
                {
                    "name": "envoy.resource_monitors.global_downstream_max_connections",
                    "typed_config": {
                        "@type": f"{_MONITORS}.downstream_connections.v3.DownstreamConnectionsConfig",
                        "max_active_downstream_connections": _MOST_CONNECTIONS,
                    },
                }
            ]
        },
        "static_resources": {"listeners": listeners, "clusters": clusters},
    }


def _clusters(front: Front, settings: EnvoySettings, *, is_grpc: bool) -> list[dict[str, object]]:
    found = [cluster(front.backends, settings, is_grpc=is_grpc)]
    if front.mirror is not None:
        found.append(cluster(front.mirror, settings, is_grpc=is_grpc, is_mirror=True))
    return found
