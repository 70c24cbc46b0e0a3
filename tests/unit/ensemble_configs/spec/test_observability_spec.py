# SPDX-License-Identifier: Apache-2.0
"""`tracing` and `logs` of a deployment: what is refused, what is rendered, and who reads it."""

from pathlib import Path

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from ensemble_configs.changes.deployment_diff import Kind, compare
from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.repository import render_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.observability_spec import LogsSpec, TracingSpec, read_adapter_parameters
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

ENDPOINT = "http://collector.example:4318"


def deployment(**more: object) -> DeploymentSpec:
    return DeploymentSpec.of_one(name="d", tokenizer={"dir": "/t"}, engine={"provider": "simulated"}, **more)


@pytest.mark.parametrize(
    ("tracing", "said"),
    [
        ({}, "endpoint"),
        ({"endpoint": "collector:4318"}, "http://localhost:4318"),
        ({"endpoint": "http://user:secret@host:4318"}, "OTEL_EXPORTER_OTLP_HEADERS"),
        ({"endpoint": "http://host:4318/?x=1"}, "OTLP/HTTP"),
        ({"endpoint": ENDPOINT, "sample_ratio": 1.5}, "sample_ratio"),
        ({"endpoint": ENDPOINT, "protocol": "grpc"}, "http/protobuf"),
        ({"endpoint": ENDPOINT, "export_delay_s": 0}, "export_delay_s"),
        ({"endpoint": ENDPOINT, "ratio": 1}, "ratio"),
    ],
)
def test_what_is_wrong_is_named(tracing: dict[str, object], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        validate(TracingSpec, tracing, source=Path("d.yaml"))


@pytest.mark.parametrize(
    "endpoint", ["http://localhost:4318", "https://[::1]:4318", "http://127.0.0.1:4318/", "http://h/otlp"]
)
def test_an_endpoint_ends_without_a_slash(endpoint: str) -> None:
    assert TracingSpec(endpoint=endpoint).endpoint == endpoint.rstrip("/")


def test_the_defaults_say_nothing_to_anybody() -> None:
    assert not [name for name, _ in launch_flags(deployment()) if "trace" in name or "header" in name]
    assert deployment(logs={"format": "text"}).adapter_parameters == {}


def test_every_adapter_reads_what_the_deployment_says() -> None:
    spec = deployment(tracing={"endpoint": ENDPOINT, "sample_ratio": 0.25}, logs={"format": "json"})
    files = render_repository(spec, root=Path("/models"), source="d.yaml")
    texts = {path.parent.name: text for path, text in files.items() if path.name == "config.pbtxt"}
    for name in ("ensemble", "tensorrt_llm", "tensorrt_llm_bls", "preprocessing", "postprocessing"):
        config = text_format.Parse(texts[name], model_config_pb2.ModelConfig())
        as_triton_says_it = json_format.MessageToDict(config, preserving_proto_field_name=True)
        assert read_adapter_parameters(as_triton_says_it) == (spec.tracing, LogsSpec(format="json"))
    assert "parameters" not in texts["ensemble_graph"]
    assert read_adapter_parameters({}) == (None, LogsSpec())


def test_headers_are_forwarded_and_triton_traces_where_it_is_asked_to() -> None:
    flags = launch_flags(deployment(tracing={"endpoint": ENDPOINT}))
    assert [(name, value) for name, value in flags if "forward" in name] == [
        ("grpc-header-forward-pattern", "(?i)^(traceparent|tracestate)$"),
        ("http-header-forward-pattern", "(?i)^(traceparent|tracestate)$"),
    ]
    assert not [value for name, value in flags if name == "trace-config"]
    for ratio, rate in ((1.0, "1"), (0.25, "4"), (0.0, str(2**31 - 1))):
        tracing = {"endpoint": ENDPOINT, "is_triton_traced": True, "sample_ratio": ratio}
        settings = [value for name, value in launch_flags(deployment(tracing=tracing)) if name == "trace-config"]
        assert settings[:3] == ["mode=opentelemetry", "level=TIMESTAMPS", f"rate={rate}"]
        assert f"opentelemetry,url={ENDPOINT}/v1/traces" in settings


def test_to_begin_tracing_loads_the_models_anew() -> None:
    diff = compare(deployment(), deployment(tracing={"endpoint": ENDPOINT}))
    kinds = {change.name: change.kind for change in diff.changes}
    assert kinds["ensemble"] is kinds["tensorrt_llm"] is Kind.RELOADED
    assert diff.restarts
