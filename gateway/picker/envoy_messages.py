# SPDX-License-Identifier: Apache-2.0
"""The messages of Envoy's external processing and of gRPC's health service, as far as a picker has to do with them.

Only the fields that are used are here; protobuf keeps what it does not know. Numbers and types are those of Envoy's API
(`envoy/service/ext_proc/v3/external_processor.proto`, `envoy/config/core/v3/base.proto`,
`envoy/type/v3/http_status.proto`) and of `grpc/health/v1/health.proto`. No package brings them without harm:
xds-protos 1.85.0 has folders `opentelemetry` and `google/rpc` of its own, which overwrite those of opentelemetry-proto
and googleapis-common-protos.
"""

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, struct_pb2

PROCESS: Final = "envoy.service.ext_proc.v3.ExternalProcessor"
HEALTH: Final = "grpc.health.v1.Health"

# The send modes of bodies that a picker tells apart (`ProcessingMode.BodySendMode`); it takes any other for `BUFFERED`.
NO_BODY, FULL_DUPLEX_STREAMED = 0, 4
OVERWRITE_IF_EXISTS_OR_ADD = 2  # `HeaderValueOption.HeaderAppendAction`
SERVING, NOT_SERVING = 1, 2  # `HealthCheckResponse.ServingStatus`; enums are numbers here

_PACKAGE = "trireme.picker"
_STRUCT = "google.protobuf.Struct"
# Fields by message: number and type; `*` before a type: repeated. In `_ONE_OF` at most one field of a message is set.
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "HeaderValue": {"key": (1, "string"), "value": (2, "string"), "raw_value": (3, "bytes")},
    "HeaderMap": {"headers": (1, "*HeaderValue")},
    "HeaderValueOption": {"header": (1, "HeaderValue"), "append_action": (3, "int32")},
    "HeaderMutation": {"set_headers": (1, "*HeaderValueOption")},
    "SpaceEntry": {"key": (1, "string"), "value": (2, _STRUCT)},  # a map is such entries on the wire
    "Metadata": {"filter_metadata": (1, "*SpaceEntry")},
    "HttpHeaders": {"headers": (1, "HeaderMap"), "end_of_stream": (3, "bool")},
    "HttpBody": {"body": (1, "bytes"), "end_of_stream": (2, "bool"), "end_of_stream_without_message": (3, "bool")},
    "HttpTrailers": {},
    "ProtocolConfiguration": {"request_body_mode": (1, "int32"), "response_body_mode": (2, "int32")},
    "ProcessingRequest": {
        "request_headers": (2, "HttpHeaders"),
        "response_headers": (3, "HttpHeaders"),
        "request_body": (4, "HttpBody"),
        "response_body": (5, "HttpBody"),
        "request_trailers": (6, "HttpTrailers"),
        "response_trailers": (7, "HttpTrailers"),
        "metadata_context": (8, "Metadata"),
        "protocol_config": (11, "ProtocolConfiguration"),
    },
    "StreamedBodyResponse": {"body": (1, "bytes"), "end_of_stream": (2, "bool")},
    "BodyMutation": {"streamed_response": (3, "StreamedBodyResponse")},
    "CommonResponse": {
        "header_mutation": (2, "HeaderMutation"),
        "body_mutation": (3, "BodyMutation"),
        "clear_route_cache": (5, "bool"),
    },
    "HeadersResponse": {"response": (1, "CommonResponse")},
    "BodyResponse": {"response": (1, "CommonResponse")},
    "TrailersResponse": {},
    "HttpStatus": {"code": (1, "int32")},
    "ImmediateResponse": {"status": (1, "HttpStatus"), "headers": (2, "HeaderMutation"), "body": (3, "bytes")},
    "ProcessingResponse": {
        "request_headers": (1, "HeadersResponse"),
        "response_headers": (2, "HeadersResponse"),
        "request_body": (3, "BodyResponse"),
        "response_body": (4, "BodyResponse"),
        "request_trailers": (5, "TrailersResponse"),
        "response_trailers": (6, "TrailersResponse"),
        "immediate_response": (7, "ImmediateResponse"),
        "dynamic_metadata": (8, _STRUCT),
    },
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}
_ONE_OF: Mapping[str, tuple[str, frozenset[str]]] = {
    "ProcessingRequest": ("request", frozenset({"metadata_context", "protocol_config"})),
    "ProcessingResponse": ("response", frozenset({"dynamic_metadata"})),
}
_TYPES = {"string": 9, "bytes": 12, "bool": 8, "int32": 5}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="trireme/picker.proto", package=_PACKAGE, syntax="proto3", dependency=["google/protobuf/struct.proto"]
    )
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        one_of, others = _ONE_OF.get(name, ("", frozenset[str]()))
        if one_of:
            message.oneof_decl.add(name=one_of)
        for field, (number, kind) in fields.items():
            plain = kind.removeprefix("*")
            added = message.field.add(
                name=field,
                number=number,
                label=_OPTIONAL if plain == kind else _REPEATED,
                type=_TYPES.get(plain, _MESSAGE),
            )
            if plain not in _TYPES:
                added.type_name = f".{plain}" if "." in plain else f".{_PACKAGE}.{plain}"
            if one_of and field not in others:
                added.oneof_index = 0
    return file


def _classes() -> dict[str, Any]:
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(struct_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(_file())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in _FIELDS}


_found = _classes()
ProcessingRequest, ProcessingResponse = _found["ProcessingRequest"], _found["ProcessingResponse"]
CommonResponse, HeadersResponse, BodyResponse, TrailersResponse = (
    _found[name] for name in ("CommonResponse", "HeadersResponse", "BodyResponse", "TrailersResponse")
)
HealthCheckRequest, HealthCheckResponse = _found["HealthCheckRequest"], _found["HealthCheckResponse"]
