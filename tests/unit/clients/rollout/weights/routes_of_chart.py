# SPDX-License-Identifier: Apache-2.0
"""Routes as the chart makes them: rules that pin a request, and one that splits by weight."""

from typing import Any


def http_route(weight: int = 0) -> dict[str, Any]:
    return _route("HTTPRoute", 8000, weight, {"timeouts": {"request": "0s"}}, {"path": _path("/v2/models/ensemble")})


def grpc_route(weight: int = 0) -> dict[str, Any]:
    return _route("GRPCRoute", 8001, weight, {}, {"method": {"service": "inference.GRPCInferenceService"}})


def weights_of(route: dict[str, Any]) -> list[tuple[str, int | None]]:
    """Return the backends of all rules, each with its weight."""
    return [(each["name"], each.get("weight")) for rule in route["spec"]["rules"] for each in rule["backendRefs"]]


def _path(value: str) -> dict[str, str]:
    return {"type": "PathPrefix", "value": value}


def _route(kind: str, port: int, weight: int, extra: dict[str, Any], match: dict[str, Any]) -> dict[str, Any]:
    def backend(name: str, **weight: int) -> dict[str, Any]:
        return {"name": name, "port": port, **weight}

    def rule(pin: str, *backends: dict[str, Any]) -> dict[str, Any]:
        headers = {"headers": [{"name": "x-trireme-release", "value": pin}]} if pin else {}
        return {**extra, "matches": [{**match, **headers}], "backendRefs": list(backends)}

    split = rule("", backend("chat", weight=10_000 - weight), backend("chat-2", weight=weight))
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "chat", "namespace": "llm", "annotations": {"meta.helm.sh/release-name": "chat"}},
        "spec": {
            "parentRefs": [{"name": "models", "sectionName": "grpc" if kind == "GRPCRoute" else "http"}],
            "rules": [rule("candidate", backend("chat-2")), rule("stable", backend("chat")), split],
        },
    }
