# SPDX-License-Identifier: Apache-2.0
"""How an engine is found: imported when named, and refused with the next step when it is not there."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from fake_tensorrt_llm import fake_tensorrt_llm, write_checkpoint, write_engine

from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.engine.tensorrt_llm_specs import PyTorchEngineSpec, TensorRtEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.clock import VirtualClock
from serving.engines.seam.model_folder import load_model_folder
from serving.engines.tensorrt_llm.trtllm_loading import refuse_versions_without_engines
from trireme.base.errors import SpecError


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """Return a folder that looks like a model until something reads its weights."""
    (tmp_path / "openvino_model.xml").write_text("not a model")
    write_config(tmp_path, eos_token_id=1)
    return tmp_path


def write_config(folder: Path, **changes: object) -> None:
    config = {"vocab_size": 100, "max_position_embeddings": 2048, "hidden_size": 8} | changes
    (folder / "config.json").write_text(json.dumps(config))


def test_a_simulated_engine_runs_on_the_clock_it_is_given() -> None:
    engine = create_engine(SimulatedEngineSpec(provider="simulated"), clock=VirtualClock())
    assert engine.info.provider == "simulated"


def test_only_the_provider_that_is_named_is_imported() -> None:
    script = (
        "import sys; from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec\n"
        "from serving.engines.providers import create_engine\n"
        "create_engine(SimulatedEngineSpec(provider='simulated'))\n"
        "print([name for name in sys.modules if name.startswith(('openvino', 'serving.engines.openvino'))])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_a_provider_that_is_not_installed_is_refused_with_what_to_install(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(SpecError, match=r"openvino_genai, which is not installed; pip install '/"):
        create_engine(OpenVinoEngineSpec(provider="openvino", dir=model_folder))


@pytest.mark.parametrize(
    "spec",
    [TensorRtEngineSpec(provider="tensorrt", dir=Path("x")), PyTorchEngineSpec(provider="pytorch", dir=Path("x"))],
    ids=["tensorrt", "pytorch"],
)
def test_without_tensorrt_llm_its_providers_are_refused_with_what_to_install(
    spec: TensorRtEngineSpec | PyTorchEngineSpec,
) -> None:
    assert importlib.util.find_spec("tensorrt_llm") is None
    with pytest.raises(SpecError, match=r"'(tensorrt|pytorch)' needs tensorrt_llm, .* pip install .*\[build-trtllm\]"):
        create_engine(spec)


def test_a_tensorrt_llm_without_engines_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    spec = TensorRtEngineSpec(provider="tensorrt", dir=write_engine(tmp_path))
    with fake_tensorrt_llm("1.3.0"), pytest.raises(SpecError) as refusal:
        create_engine(spec)
    for way in ("1.3.0 is installed", "provider 'pytorch'", "tensorrt-llm==1.2.1", "26.07-trtllm-python-py3"):
        assert way in str(refusal.value)
    assert (refusal.value.facts["field"], refusal.value.facts["value"]) == ("engine.provider", "tensorrt")


@pytest.mark.parametrize("version", ["1.3.0", "1.3.0rc20", "1.10.0", "2.0"])
def test_every_version_from_1_3_on_is_one_without_engines(version: str) -> None:
    with pytest.raises(SpecError, match=r"before 1\.3"):
        refuse_versions_without_engines(version)


@pytest.mark.parametrize("version", ["1.2.1", "1.0.0", "1.2.0rc6"])
def test_versions_before_1_3_have_engines(version: str) -> None:
    refuse_versions_without_engines(version)


def test_checkpoints_are_served_by_later_versions(tmp_path: Path) -> None:
    spec = PyTorchEngineSpec(provider="pytorch", dir=write_checkpoint(tmp_path))
    with fake_tensorrt_llm("1.3.0"):
        engine = create_engine(spec)
    assert engine.info.provider == "pytorch"
    engine.close()


@pytest.mark.parametrize("missing", ["openvino_model.xml", "config.json"])
def test_a_folder_without_a_model_is_refused_with_the_next_step(model_folder: Path, missing: str) -> None:
    (model_folder / missing).unlink()
    with pytest.raises(SpecError, match=f"has no {missing}; make the model with `make demo-model`"):
        create_engine(OpenVinoEngineSpec(provider="openvino", dir=model_folder))


@pytest.mark.parametrize(
    ("config", "generation_config", "end_ids"),
    [
        ({"eos_token_id": 1}, None, (1,)),
        ({"eos_token_id": 1}, {"eos_token_id": [2, 3]}, (2, 3)),
        ({"eos_token_id": [4, 5]}, {"temperature": 0.6}, (4, 5)),
        ({}, None, ()),
    ],
    ids=["config", "generation-config-wins", "generation-config-is-silent", "none"],
)
def test_end_tokens_are_those_that_the_model_names(
    model_folder: Path, config: dict[str, object], generation_config: object, end_ids: tuple[int, ...]
) -> None:
    (model_folder / "config.json").write_text(json.dumps({"vocab_size": 9, "max_position_embeddings": 8} | config))
    if generation_config is not None:
        (model_folder / "generation_config.json").write_text(json.dumps(generation_config))
    assert load_model_folder(model_folder, weights="openvino_model.xml").end_ids == end_ids


def test_a_config_without_a_vocabulary_is_refused_by_name(model_folder: Path) -> None:
    (model_folder / "config.json").write_text('{"max_position_embeddings": 8}')
    with pytest.raises(SpecError, match=r"config.json: .*vocab_size"):
        load_model_folder(model_folder, weights="openvino_model.xml")
