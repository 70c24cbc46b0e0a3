# SPDX-License-Identifier: Apache-2.0
"""Reports about single requests as typed data: their traces, and lines of the server's log."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from ensemble_configs.spec.base import Boolean, Number, Spec

# Names of hosts, IPv4, and IPv6 in brackets; a path in front of `/v1/traces`, no question and no user.
_ENDPOINT = re.compile(r"https?://(?:[0-9A-Za-z._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[0-9A-Za-z._~/-]*)?")


def _is_endpoint(value: str) -> str:
    if not _ENDPOINT.fullmatch(value):
        raise ValueError(
            "input should be the address of an OTLP/HTTP receiver, such as http://localhost:4318; what it wants to see "
            "in its headers goes into OTEL_EXPORTER_OTLP_HEADERS"
        )
    return value.rstrip("/")


class TracingSpec(Spec):
    """Export to an OTLP receiver: spans of requests, and the histogram of the time to first token with exemplars."""

    endpoint: Annotated[str, Field(max_length=2048), AfterValidator(_is_endpoint)] = Field(
        description="of the collector; spans go to /v1/traces below it, the histogram to /v1/metrics"
    )
    protocol: Literal["http/protobuf"] = Field(default="http/protobuf", description="protocol of the collector")
    sample_ratio: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=1.0, description="of requests that come without a trace; of one that is in a trace its caller decides"
    )
    export_delay_s: Annotated[Number, Field(ge=0.05, le=60)] = Field(default=1.0, description="in which spans gather")
    metrics_period_s: Annotated[Number, Field(ge=0.1, le=3600)] = Field(
        default=10.0, description="seconds between two exports of the histogram"
    )
    is_triton_traced: Boolean = Field(
        default=False,
        description="Triton's own spans too; it traces whatever its caller has a trace for, sampled or not",
    )


class LogsSpec(Spec):
    """Lines that the processes in Python write to the server's log; prompts and answers are never in it."""

    format: Literal["text", "json"] = Field(default="text", description="json: an object a line")
    requests: Literal["none", "failed", "all"] = Field(default="none", description="a line for each of these")


def adapter_parameters(tracing: TracingSpec | None, logs: LogsSpec) -> dict[str, str]:
    """Return the settings that the adapters read, as parameters of their `config.pbtxt`; none for the defaults."""
    parameters = {}
    if tracing is not None:
        parameters[_TRACING] = tracing.model_dump_json()
    if logs != LogsSpec():
        parameters[_LOGS] = logs.model_dump_json()
    return parameters


def read_adapter_parameters(config: Mapping[str, object]) -> tuple[TracingSpec | None, LogsSpec]:
    """Return tracing and logs from a model's config as Triton gives it to an adapter; see `adapter_parameters`."""
    parameters = config.get("parameters")
    texts = parameters if isinstance(parameters, dict) else {}
    tracing = texts.get(_TRACING)
    logs = texts.get(_LOGS)
    return (
        None if tracing is None else TracingSpec.model_validate_json(tracing["string_value"]),
        LogsSpec() if logs is None else LogsSpec.model_validate_json(logs["string_value"]),
    )


_TRACING, _LOGS = "tracing", "logs"
