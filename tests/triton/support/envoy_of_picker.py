# SPDX-License-Identifier: Apache-2.0
"""The real Envoy with the filter and the clusters that the inference extension has for an endpoint picker."""

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import yaml
from running_envoy import RunningEnvoy

from clients.envoy_parts import EXTENSIONS, Address, socket_address
from trireme.base.free_ports import free_ports

_LOG_S = 30.0  # until what has been answered is written down
_HEADER = "x-gateway-destination-endpoint"
_HTTP2 = {
    "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
        "@type": f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
}


def _by_original_destination() -> dict[str, Any]:
    """Return the cluster that connects to whatever address the header has."""
    return {
        "name": "pool",
        "type": "ORIGINAL_DST",
        "lb_policy": "CLUSTER_PROVIDED",
        "connect_timeout": "2s",
        "original_dst_lb_config": {"use_http_header": True, "http_header_name": _HEADER},
    }


def _by_override_host(endpoints: list[str]) -> dict[str, Any]:
    """Return the cluster that knows its endpoints, and takes the one that the metadata have; else in turns."""
    policies = f"{EXTENSIONS}.load_balancing_policies"
    in_turns = {
        "name": "envoy.load_balancing_policies.round_robin",
        "typed_config": {"@type": f"{policies}.round_robin.v3.RoundRobin"},
    }
    override = {
        "name": "envoy.load_balancing_policies.override_host",
        "typed_config": {
            "@type": f"{policies}.override_host.v3.OverrideHost",
            "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": _HEADER}]}}],
            "fallback_policy": {"policies": [{"typed_extension_config": in_turns}]},
        },
    }
    addresses = [Address(each.rpartition(":")[0], int(each.rpartition(":")[2])) for each in endpoints]
    return {
        "name": "pool",
        "type": "STATIC",
        "connect_timeout": "2s",
        "load_balancing_policy": {"policies": [{"typed_extension_config": override}]},
        "load_assignment": {
            "cluster_name": "pool",
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": socket_address(each)}} for each in addresses]}],
        },
    }


class EnvoyOfPicker(RunningEnvoy):
    """An Envoy that runs inside a `with`.

    Args:
        picker_port: of the picker, on the loopback interface.
        body_mode: how bodies of requests and of answers go to the picker.
        endpoints: that the cluster knows; empty: it connects to any address that the picker says.
    """

    def __init__(self, folder: Path, picker_port: int, *, body_mode: str, endpoints: list[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.port, self._admin_port = free_ports(2)
        self._access_log, path = folder / "access.log", folder / "envoy.yaml"
        pool = _by_override_host(endpoints) if endpoints else _by_original_destination()
        is_streamed = body_mode == "FULL_DUPLEX_STREAMED"
        picking = {
            "@type": f"{EXTENSIONS}.filters.http.ext_proc.v3.ExternalProcessor",
            "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
            "message_timeout": "10s",
            "metadata_options": {"receiving_namespaces": {"untyped": ["envoy.lb"]}},
            "processing_mode": {
                "request_header_mode": "SEND",
                "response_header_mode": "SEND",
                "request_body_mode": body_mode,
                "response_body_mode": body_mode if is_streamed else "NONE",
                "request_trailer_mode": "SEND" if is_streamed else "SKIP",
                "response_trailer_mode": "SEND" if is_streamed else "SKIP",
            },
        }
        manager = {
            "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
            "stat_prefix": "pool",
            "stream_idle_timeout": "0s",
            "route_config": {
                "virtual_hosts": [
                    {
                        "name": "pool",
                        "domains": ["*"],
                        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s"}}],
                    }
                ]
            },
            "http_filters": [
                {"name": "envoy.filters.http.ext_proc", "typed_config": picking},
                {
                    "name": "envoy.filters.http.router",
                    "typed_config": {"@type": f"{EXTENSIONS}.filters.http.router.v3.Router"},
                },
            ],
            "access_log": [
                {
                    "name": "envoy.access_loggers.file",
                    "typed_config": {
                        "@type": f"{EXTENSIONS}.access_loggers.file.v3.FileAccessLog",
                        "path": str(self._access_log),
                        "log_format": {
                            "json_format": {
                                "status": "%RESPONSE_CODE%",
                                "host": "%UPSTREAM_HOST%",
                                "path": "%REQ(:PATH)%",
                            }
                        },
                    },
                }
            ],
        }
        picker = {
            "name": "picker",
            "type": "STATIC",
            "connect_timeout": "2s",
            "typed_extension_protocol_options": _HTTP2,
            "load_assignment": {
                "cluster_name": "picker",
                "endpoints": [
                    {"lb_endpoints": [{"endpoint": {"address": socket_address(Address("127.0.0.1", picker_port))}}]}
                ],
            },
        }
        listener = {
            "name": "pool",
            "address": socket_address(Address("127.0.0.1", self.port)),
            "filter_chains": [
                {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
            ],
        }
        bootstrap = {
            "admin": {"address": socket_address(Address("127.0.0.1", self._admin_port))},
            "static_resources": {"listeners": [listener], "clusters": [pool, picker]},
        }
        path.write_text(yaml.safe_dump(bootstrap))
        super().__init__(path, self._answers)

    def hosts(self, number: int) -> list[str]:
        """Return where so many requests went, in the order of their ends, once Envoy has written that down."""
        end_s = time.monotonic() + _LOG_S
        while len(found := self._hosts()) < number:
            assert time.monotonic() < end_s, found
            time.sleep(0.1)
        return found

    def _hosts(self) -> list[str]:
        urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self._admin_port}/reopen_logs", method="POST"), timeout=10
        ).close()
        return [json.loads(line)["host"] for line in self._access_log.read_text().splitlines()]

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._admin_port}/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False
