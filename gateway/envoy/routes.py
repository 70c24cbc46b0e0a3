# SPDX-License-Identifier: Apache-2.0
"""Envoy's routes: which paths are let through, which requests may be sent again, and which are copied.

A request is sent to another backend only where the first one has certainly not begun with it: there was no connection,
the request was not sent, an HTTP/2 peer says so (REFUSED_STREAM), or a gateway does (`x-trireme-not-begun`). What was
sent and had no answer may have made tokens already, and is the caller's to repeat.
"""

from clients.envoy_parts import EXTENSIONS
from clients.openai_api.api_error import NOT_BEGUN
from gateway.envoy.settings import EnvoySettings, Front

_UNBEGUN = "connect-failure,refused-stream,reset-before-request"
_SHORT_S = 30  # for lists of models, descriptions and probes
# Not the control of models, shared memory, traces and logs: that is for whoever runs the servers.
_CALLS = tuple(
    f"/inference.GRPCInferenceService/{method}"
    for method in (
        *("ModelInfer", "ModelStreamInfer", "ServerLive", "ServerReady", "ServerMetadata"),
        *("ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"),
    )
)
_HEALTH = ("/grpc.health.v1.Health/Check", "/grpc.health.v1.Health/Watch")
ADAPTIVE = "envoy.filters.http.adaptive_concurrency"


def gateway_routes(front: Front, settings: EnvoySettings) -> dict[str, object]:
    """Return the routes before gateways."""
    cluster, streams = front.backends.name, _streams(settings)
    sockets = {
        "match": {"path": "/v1/responses", "headers": [_method("GET")]},
        "route": {
            "cluster": cluster,
            **streams,
            "upgrade_configs": [{"upgrade_type": "websocket", "enabled": True}],
            "retry_policy": _retries(settings, _UNBEGUN),
        },
    }
    generations = {  # whatever is posted may be answered by a stream
        "match": {"prefix": "/v1/", "headers": [_method("POST")]},
        "route": {
            "cluster": cluster,
            **streams,
            **_mirror(front, settings),
            "retry_policy": {
                **_retries(settings, f"{_UNBEGUN},retriable-headers"),
                "retriable_headers": [{"name": NOT_BEGUN, "string_match": {"exact": "true"}}],
            },
        },
        **({} if settings.concurrency is None else {"typed_per_filter_config": {ADAPTIVE: _enabled()}}),
    }
    others: list[dict[str, object]] = [
        {
            "match": match,
            "route": {"cluster": cluster, "timeout": f"{_SHORT_S}s", "retry_policy": _retries(settings, _UNBEGUN)},
        }
        for match in ({"prefix": "/v1/"}, {"path": "/openapi.json"}, {"safe_regex": {"regex": "/health/(live|ready)"}})
    ]
    # The page, `/admin` and `/metrics` are those of each gateway, and nobody's who comes by way of all of them.
    rest = {"match": {"prefix": "/"}, "direct_response": {"status": 404}}
    return _table("gateways", [sockets, generations, *others, rest])


def server_routes(front: Front, settings: EnvoySettings) -> dict[str, object]:
    """Return the routes before Tritons."""
    route = {
        "cluster": front.backends.name,
        **_streams(settings),
        **_mirror(front, settings),
        "retry_policy": _retries(settings, _UNBEGUN),
    }
    calls: list[dict[str, object]] = [{"match": {"path": path}, "route": route} for path in (*_CALLS, *_HEALTH)]
    rest = {"match": {"prefix": "/"}, "direct_response": {"status": 403}}
    # The first would crash Triton; the others are nobody's to try.
    removed = ["triton_grpc_error", "trireme-control-key", "triton-grpc-protocol-trireme-control-key"]
    return {**_table("servers", [*calls, rest]), "request_headers_to_remove": removed}


def _table(name: str, routes: list[dict[str, object]]) -> dict[str, object]:
    return {"name": name, "virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes}]}


def _method(name: str) -> dict[str, object]:
    return {"name": ":method", "string_match": {"exact": name}}


def _streams(settings: EnvoySettings) -> dict[str, object]:
    """Return the times of an answer that streams: silence has an end, the answer has none."""
    return {"timeout": "0s", "idle_timeout": f"{settings.idle_s:g}s"}


def _retries(settings: EnvoySettings, causes: str) -> dict[str, object]:
    return {
        "retry_on": causes,
        "num_retries": settings.retries,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {"@type": f"{EXTENSIONS}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
            }
        ],
        "host_selection_retry_max_attempts": 20,  # who fails at once has the fewest requests, and is chosen first
    }


def _mirror(front: Front, settings: EnvoySettings) -> dict[str, object]:
    if front.mirror is None:
        return {}
    share = {"numerator": round(10_000 * settings.mirror_percent), "denominator": "MILLION"}
    return {"request_mirror_policies": [{"cluster": front.mirror.name, "runtime_fraction": {"default_value": share}}]}


def _enabled() -> dict[str, object]:
    return {"@type": "type.googleapis.com/envoy.config.route.v3.FilterConfig", "config": {}}
