# SPDX-License-Identifier: Apache-2.0
"""Refusals of KV events that could not be told, before anything is started."""

import importlib.util
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from simulated_release import TOKENIZER

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.kv_events_spec import KvEventsSpec
from ensemble_configs.spec.validation import validate
from serving.doctor.preflight import check
from trireme.base.errors import SpecError
from trireme.base.free_ports import free_ports

MODEL: dict[str, Any] = {"tokenizer": {"dir": TOKENIZER}, "engine": {"provider": "simulated"}}


def deployment(*models: Mapping[str, object], **triton: int) -> DeploymentSpec:
    """Return a deployment of models that tell so."""
    numbers = dict(zip(("http_port", "grpc_port", "metrics_port"), free_ports(3), strict=True))
    return validate(
        DeploymentSpec,
        {
            "name": "told",
            "triton": numbers | triton,
            "models": [{"name": f"m{index}", **MODEL, "kv_events": events} for index, events in enumerate(models)],
        },
        source=Path("d.yaml"),
    )


def test_what_can_be_told_passes_and_each_model_has_its_own_name_for_routers() -> None:
    first, second = free_ports(2)
    told = deployment({"endpoint": f"tcp://*:{first}"}, {"endpoint": f"tcp://*:{second}", "model_name": "org/chat"})
    check(told)
    events = [release.kv_events for release in told.releases]
    assert [each and each.model_name for each in events] == ["m0", "org/chat"]


def test_releases_of_a_model_share_its_name() -> None:
    other = {**MODEL, "release": 2, "kv_events": {}}
    spec = DeploymentSpec.of_one(name="chat", **MODEL, kv_events={}, other_releases=[other])
    assert [release.kv_events and release.kv_events.model_name for release in spec.releases] == ["chat", "chat"]


def test_zeromq_without_its_package_is_refused_and_http_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "zmq" else find_spec(name))
    check(deployment({}))
    with pytest.raises(SpecError, match=r"kv_events.endpoint needs pyzmq.*\[kv-events\]"):
        check(deployment({"endpoint": f"tcp://*:{free_ports(1)[0]}"}))


def test_one_endpoint_in_two_ways_is_refused() -> None:
    first, second = free_ports(2)
    one = {"endpoint": f"tcp://*:{first}"}
    check(deployment(one, one))
    with pytest.raises(SpecError, match=f"named twice, with kv_events.replay_endpoint None and tcp://\\*:{second}"):
        check(deployment(one, one | {"replay_endpoint": f"tcp://*:{second}"}))


def test_a_port_that_is_triton_s_or_taken_is_refused() -> None:
    [port] = free_ports(1)
    with pytest.raises(SpecError, match=f"port {port} is triton.metrics_port; name another"):
        check(deployment({"endpoint": f"tcp://*:{port}"}, metrics_port=port))
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SpecError, match=rf"port {port} cannot be used \(Address already in use\)"):
            check(deployment({"endpoint": f"tcp://*:{port}"}))


@pytest.mark.parametrize(
    ("settings", "finding"),
    [
        ({"endpoint": "5557"}, "tcp://*:5557 to listen"),
        ({"endpoint": "tcp://*:99999"}, "tcp://*:5557 to listen"),
        ({"endpoint": "udp://*:5557"}, "tcp://*:5557 to listen"),
        ({"replay_endpoint": "tcp://*:5558"}, "replay_endpoint is for subscribers of endpoint"),
        ({"endpoint": "tcp://*:5557", "replay_endpoint": "tcp://*:5557"}, "are both tcp://*:5557; they must differ"),
        ({"model_name": "a@b"}, "model_name"),
        ({"server_name": "kv@me"}, "server_name"),
        ({"server_name": "{pod}"}, "server_name"),
    ],
)
def test_what_routers_could_not_read_is_refused(settings: dict[str, object], finding: str) -> None:
    with pytest.raises(SpecError, match=re.escape(finding)):
        validate(KvEventsSpec, settings, source=Path("d.yaml"))


@pytest.mark.parametrize(
    ("engine", "finding"),
    [
        ({"provider": "openvino", "dir": "/model"}, "OpenVINO GenAI tells no events of its KV cache; leave it out"),
        ({"provider": "vllm", "dir": "/model", "is_block_reuse": False}, "engine.is_block_reuse is false"),
    ],
)
def test_an_engine_that_has_nothing_to_tell_is_refused(engine: dict[str, object], finding: str) -> None:
    data = {"name": "x", "tokenizer": {"dir": "t"}, "engine": engine, "kv_events": {}}
    with pytest.raises(SpecError, match=re.escape(finding)):
        validate(DeploymentSpec, data, source=Path("d.yaml"))


def test_ports_are_those_on_which_the_server_listens() -> None:
    listening = KvEventsSpec(endpoint="tcp://*:5557", replay_endpoint="tcp://*:5558")
    assert listening.ports == (5557, 5558)
    assert KvEventsSpec(endpoint="tcp://router:5557", replay_endpoint="tcp://*:5558").ports == (5558,)
    assert KvEventsSpec(endpoint="ipc:///run/events").ports == ()
