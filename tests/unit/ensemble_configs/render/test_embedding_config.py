# SPDX-License-Identifier: Apache-2.0
"""The files of an embedding model that Triton reads, and what a change of the deployment loads anew of it."""

import json
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from ensemble_configs.changes.deployment_diff import Kind, compare
from ensemble_configs.render.embedding_config import load_embedding_model
from ensemble_configs.render.embedding_tensors import DIMENSIONS, IDS, NUM_TOKENS, TEXTS, VECTORS
from ensemble_configs.render.helm_values import helm_values
from ensemble_configs.render.launch_flags import launch_flags
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec


def deployment(*fields: dict[str, Any], **more: Any) -> DeploymentSpec:
    models = [{"name": "embed", "dir": "/models/minilm", "pooling": "mean", **each} for each in fields]
    return DeploymentSpec.of_one(
        name="mine",
        tokenizer={"dir": "/models/mine"},
        engine={"provider": "simulated"},
        embedding_models=models,
        **more,
    )


def written(spec: DeploymentSpec, root: Path) -> Any:
    write_repository(spec, root=root, source="mine.yaml")
    return text_format.Parse((root / "embed/config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_the_config_joins_requests_and_bounds_what_waits(tmp_path: Path) -> None:
    config = written(deployment({"batch_wait_ms": 2.5, "max_batch_size": 32, "max_queue_size": 7}), tmp_path)
    assert (config.name, config.backend, config.max_batch_size) == ("embed", "python", 32)
    assert config.dynamic_batching.max_queue_delay_microseconds == 2500
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 7
    assert {each.name: (list(each.dims), each.optional) for each in config.input} == {
        TEXTS: ([1], True),
        IDS: ([-1], True),
        DIMENSIONS: ([1], True),
    }
    assert {each.name: list(each.dims) for each in config.output} == {VECTORS: [-1], NUM_TOKENS: [1]}
    assert list(config.version_policy.specific.versions) == [1]


def test_the_adapter_and_its_file_are_in_the_version_folder(tmp_path: Path) -> None:
    spec = deployment({})
    written(spec, tmp_path / "repository")
    folder = tmp_path / "repository/embed/1"
    assert "class TritonPythonModel" in (folder / "model.py").read_text()
    assert not Path(json.loads((folder / "embedding.json").read_text())["dir"]).is_absolute()  # the tree may move
    assert load_embedding_model(folder).dir.resolve() == Path("/models/minilm")


def test_a_model_that_a_deployment_has_no_more_is_removed(tmp_path: Path) -> None:
    written(deployment({}), tmp_path)
    write_repository(deployment(), root=tmp_path, source="mine.yaml")
    assert not (tmp_path / "embed").exists()


def test_settings_of_every_adapter_reach_it(tmp_path: Path) -> None:
    config = written(deployment({}, logs={"format": "json"}), tmp_path)
    assert config.parameters


def test_a_change_of_one_model_loads_it_anew_and_no_other() -> None:
    before = deployment({})
    [added] = compare(deployment(), before).changes
    assert (added.name, added.kind, added.loaded) == ("embed", Kind.ADDED, (1,))
    [changed] = compare(before, deployment({"pooling": "cls"})).changes
    assert (changed.name, changed.kind, changed.loaded) == ("embed", Kind.RELOADED, (1,))
    assert "pooling mean -> cls" in changed.why[0]
    [bounded] = compare(before, deployment({"max_queue_size": 5})).changes
    assert bounded.kind is Kind.RELOADED
    assert compare(before, before).changes == ()


def test_each_version_of_a_model_has_a_thread_that_loads_it() -> None:
    def threads(spec: DeploymentSpec) -> int:
        return int(dict(launch_flags(spec))["model-load-thread-count"])

    many = [{"name": f"embed_{number}"} for number in range(70)]
    assert threads(deployment(*many)) == threads(deployment()) - 64 + 70 + len(deployment().model.steps)


def test_the_chart_sends_requests_for_it_to_the_first_server() -> None:
    values = helm_values(deployment({}))
    servers = values["servers"]
    assert isinstance(servers, dict)
    assert servers["mine"]["extraModels"] == ["embed"]
    assert "embedding_models" in servers["mine"]["deployment"]
