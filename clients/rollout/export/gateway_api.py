# SPDX-License-Identifier: Apache-2.0
"""`HTTPRoute` and `GRPCRoute` of the Gateway API, with the weights of the stable and the candidate Service.

Weights hold for each request by itself: the standard channel of the Gateway API knows no keys, so nothing is sticky.
"""

from clients.rollout.export.definition import weights

_API = "gateway.networking.k8s.io/v1"


def gateway_routes(
    share: float,
    *,
    name: str,
    namespace: str | None,
    gateway: str,
    stable_service: str,
    candidate_service: str,
    http_port: int,
    grpc_port: int,
) -> list[dict[str, object]]:
    """Return an `HTTPRoute` and a `GRPCRoute`.

    Each belongs to a listener of its own, `http` and `grpc`: on one listener a hostname has one kind of route.

    Raises:
        RequestError: the share is finer than the weights.
    """

    def backends(port: int) -> list[dict[str, object]]:
        pairs = zip((stable_service, candidate_service), reversed(weights(share)), strict=True)
        return [{"name": service, "port": port, "weight": weight} for service, weight in pairs]

    def route(kind: str, listener: str, rule: dict[str, object]) -> dict[str, object]:
        return {
            "apiVersion": _API,
            "kind": kind,
            "metadata": {"name": name, **({"namespace": namespace} if namespace else {})},
            "spec": {"parentRefs": [{"name": gateway, "sectionName": listener}], "rules": [rule]},
        }

    http: dict[str, object] = {
        "matches": [{"path": {"type": "PathPrefix", "value": "/"}}],
        "timeouts": {"request": "0s"},  # none: answers stream for as long as they take
        "backendRefs": backends(http_port),
    }
    return [route("HTTPRoute", "http", http), route("GRPCRoute", "grpc", {"backendRefs": backends(grpc_port)})]
