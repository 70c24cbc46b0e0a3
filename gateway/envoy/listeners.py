# SPDX-License-Identifier: Apache-2.0
"""Envoy's listeners: what callers may send, how long they may take, TLS, and the log of their requests.

Nothing here gathers an answer: events and messages go on as they come. What has limits of time is what a caller owes,
the head and the body of a request, and silence; an answer may take as long as it says something.
"""

from clients.envoy_parts import EXTENSIONS, socket_address
from gateway.envoy.clusters import certificate, watched_file
from gateway.envoy.routes import ADAPTIVE, gateway_routes, server_routes
from gateway.envoy.settings import Concurrency, EnvoySettings, Front, ListenerTls

_HEAD_S, _BODY_S, _CONNECTION_IDLE_S = 10, 60, 3600
_PING_S, _PONG_S = 30, 10  # a caller that vanished without a word is noticed, and its stream ends
_MAX_HEAD_KIB, _MAX_HEADERS = 32, 100


def gateway_listener(front: Front, settings: EnvoySettings) -> dict[str, object]:
    """Return the listener before gateways: HTTP/1.1 and HTTP/2 of callers, events, WebSockets."""
    manager = {
        **_manager("gateways", settings),
        "request_timeout": f"{_BODY_S}s",
        "upgrade_configs": [{"upgrade_type": "websocket", "enabled": False}],  # the route of WebSockets enables it
        "local_reply_config": _local_replies(),
        "route_config": gateway_routes(front, settings),
        "http_filters": [_without_internal_headers(), *_adaptive(settings.concurrency), _router()],
    }
    manager["common_http_protocol_options"] = {
        "idle_timeout": f"{_CONNECTION_IDLE_S}s",
        "max_headers_count": _MAX_HEADERS,
        "headers_with_underscores_action": "DROP_HEADER",
    }
    return _listener(front, settings, manager, protocols=["h2", "http/1.1"])


def server_listener(front: Front, settings: EnvoySettings) -> dict[str, object]:
    """Return the listener before Tritons, for gRPC."""
    manager = {
        **_manager("servers", settings),
        "always_set_request_id_in_response": True,
        "route_config": server_routes(front, settings),
        "http_filters": [_without_envoys_headers(), _router()],
    }
    return _listener(front, settings, manager, protocols=["h2"])


def _listener(
    front: Front, settings: EnvoySettings, manager: dict[str, object], *, protocols: list[str]
) -> dict[str, object]:
    chain: dict[str, object] = {
        "filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]
    }
    if settings.tls is not None:
        chain["transport_socket"] = _tls(settings.tls, protocols)
    return {
        "name": front.backends.name,
        "address": socket_address(front.listen),
        # A request is kept until its answer begins, to be sent again where that is safe.
        "per_connection_buffer_limit_bytes": settings.max_body_bytes,
        "filter_chains": [chain],
    }


def _manager(name: str, settings: EnvoySettings) -> dict[str, object]:
    """Return what both listeners ask of callers."""
    return {
        "@type": f"{EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "use_remote_address": True,
        "generate_request_id": True,
        "preserve_external_request_id": True,  # an answer has the gateway's own, by which the ledger knows it
        "request_headers_timeout": f"{_HEAD_S}s",
        "stream_idle_timeout": f"{settings.idle_s:g}s",
        "max_request_headers_kb": _MAX_HEAD_KIB,
        "common_http_protocol_options": {
            "idle_timeout": f"{_CONNECTION_IDLE_S}s",
            "max_headers_count": _MAX_HEADERS,
        },
        "http2_protocol_options": {"connection_keepalive": {"interval": f"{_PING_S}s", "timeout": f"{_PONG_S}s"}},
        "normalize_path": True,
        "merge_slashes": True,
        "path_with_escaped_slashes_action": "REJECT_REQUEST",
        **({} if settings.access_log is None else {"access_log": [_access_log(str(settings.access_log))]}),
    }


def _without_internal_headers() -> dict[str, object]:
    """Return the filter that takes headers away which callers have no business to send.

    By `x-envoy-retry-on` and its like a caller could have a generation repeated.
    """
    return _removing("x-trireme-", "x-envoy-")


def _without_envoys_headers() -> dict[str, object]:
    """Return the same before Tritons: `x-trireme-model` and others are metadata of their clients."""
    return _removing("x-envoy-")


def _removing(*prefixes: str) -> dict[str, object]:
    removed = [{"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in prefixes]
    return {
        "name": "envoy.filters.http.header_mutation",
        "typed_config": {
            "@type": f"{EXTENSIONS}.filters.http.header_mutation.v3.HeaderMutation",
            "mutations": {"request_mutations": removed},
        },
    }


def _adaptive(concurrency: Concurrency | None) -> list[dict[str, object]]:
    """Return the filter that refuses requests as answers take longer; the routes of generations enable it.

    It takes a long answer for a slow one. So it never refuses as many requests as the engines run at a time: not while
    it measures, when Envoy by itself would let 3 through, and not when answers become longer.
    """
    if concurrency is None:
        return []
    return [
        {
            "name": ADAPTIVE,
            "disabled": True,
            "typed_config": {
                "@type": f"{EXTENSIONS}.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency",
                "concurrency_limit_exceeded_status": {"code": "TooManyRequests"},
                "gradient_controller_config": {
                    "sample_aggregate_percentile": {"value": 50},
                    "concurrency_limit_params": {
                        "max_concurrency_limit": concurrency.most,
                        "concurrency_update_interval": "1s",
                    },
                    "min_rtt_calc_params": {
                        "interval": f"{concurrency.window_s:g}s",
                        "request_count": 50,
                        "min_concurrency": concurrency.least,
                        "buffer": {"value": 100},
                    },
                },
            },
        }
    ]


def _router() -> dict[str, object]:
    return {
        "name": "envoy.filters.http.router",
        "typed_config": {
            "@type": f"{EXTENSIONS}.filters.http.router.v3.Router",
            "suppress_envoy_headers": True,
        },
    }


def _access_log(path: str) -> dict[str, object]:
    """Return the log of requests: no query, which may hold a secret, and no header that holds a key."""
    return {
        "name": "envoy.access_loggers.file",
        "typed_config": {
            "@type": f"{EXTENSIONS}.access_loggers.file.v3.FileAccessLog",
            "path": path,
            "log_format": {
                "json_format": {
                    "time": "%START_TIME%",
                    "request_id": "%REQ(X-REQUEST-ID)%",
                    "answer_id": "%RESP(X-REQUEST-ID)%",
                    "method": "%REQ(:METHOD)%",
                    "path": "%PATH(NQ:PATH)%",
                    "protocol": "%PROTOCOL%",
                    "status": "%RESPONSE_CODE%",
                    "grpc_status": "%GRPC_STATUS%",
                    "flags": "%RESPONSE_FLAGS%",
                    "details": "%RESPONSE_CODE_DETAILS%",
                    "first_byte_ms": "%RESPONSE_DURATION%",
                    "duration_ms": "%DURATION%",
                    "bytes_received": "%BYTES_RECEIVED%",
                    "bytes_sent": "%BYTES_SENT%",
                    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
                    "upstream": "%UPSTREAM_HOST%",
                    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
                }
            },
        },
    }


def _tls(tls: ListenerTls, protocols: list[str]) -> dict[str, object]:
    common: dict[str, object] = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "alpn_protocols": protocols,
        "tls_certificates": [certificate(str(tls.cert_file), str(tls.key_file))],
    }
    if tls.client_ca_file is not None:
        common["validation_context"] = {"trusted_ca": watched_file(str(tls.client_ca_file))}
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": f"{EXTENSIONS}.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": tls.client_ca_file is not None,
            "common_tls_context": common,
        },
    }


def _local_replies() -> dict[str, object]:
    """Return Envoy's own answers in the form of OpenAI's errors."""
    return {
        "mappers": [
            _reply(
                {"response_flag_filter": {"flags": ["UO"]}},
                429,
                "overloaded",
                "too many requests are under way; try again",
            ),
            _reply(_status("EQ", 429), 429, "overloaded", "too many requests are under way; try again"),
            _reply(_status("EQ", 404), 404, "not_found", "there is no such path here"),
            _reply(_status("EQ", 504), 504, "timeout", "the answer took too long"),
            _reply(_status("GE", 500), 503, "unavailable", "no gateway could answer, or one broke off; try again"),
        ],
        "body_format": _error(400, "invalid_value", "the request is not one that is taken here"),
    }


def _status(op: str, value: int) -> dict[str, object]:
    # Its key is one that nobody sets: the value is what it is.
    return {"status_code_filter": {"comparison": {"op": op, "value": {"default_value": value, "runtime_key": "none"}}}}


def _reply(filter_: dict[str, object], status: int, code: str, message: str) -> dict[str, object]:
    again = [{"header": {"key": "retry-after", "value": "1"}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}]
    return {
        "filter": filter_,
        "status_code": status,
        "body_format_override": _error(status, code, message),
        **({"headers_to_add": again} if status in (429, 503) else {}),
    }


def _error(status: int, code: str, message: str) -> dict[str, object]:
    kind = {404: "not_found_error", 429: "rate_limit_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    text = f'{{"error": {{"message": "{message}", "type": "{kind}", "param": null, "code": "{code}"}}}}'
    return {"text_format_source": {"inline_string": text}, "content_type": "application/json"}
