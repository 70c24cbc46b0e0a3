# SPDX-License-Identifier: Apache-2.0
"""An existing checkpoint becomes a deployment of provider `vllm`, and a sealed release."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from demo_release import DEMO_MODEL
from quantized_checkpoints import write_awq, write_gptq
from test_import_command import run
from vllm_environment import VENV, WHY_NOT, is_there

from build_engines.evaluation.vllm_side import VllmSide, vllm_spec_of
from build_engines.migration.checkpoint_import import import_checkpoint, is_checkpoint
from build_engines.planner.engine_memory import memory_of
from ensemble_configs.releases.machine import Gpu, Machine
from ensemble_configs.releases.preflight import check_release
from ensemble_configs.releases.release_manifest import address, load_manifest, verify
from ensemble_configs.spec.deployment import load_deployment
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import SpecError

TARGET = DEMO_MODEL / "target"
WRITERS = {"awq": write_awq, "gptq": write_gptq}


def changed(folder: Path, **config: object) -> Path:
    shutil.copytree(TARGET, folder)
    given = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(given))
    return folder


def test_a_checkpoint_is_told_from_a_repository(tmp_path: Path) -> None:
    assert is_checkpoint(TARGET)
    assert not is_checkpoint(tmp_path)


def test_a_plain_checkpoint_is_served_where_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "chat.yaml"
    code, _, error = run(capsys, monkeypatch, TARGET, "--out", out)
    assert code == 0, error
    deployment = load_deployment(out)
    assert deployment.name == "chat"
    assert deployment.model.engine.model_dump(include={"provider", "dir", "max_seq_len"}) == {
        "provider": "vllm", "dir": TARGET, "max_seq_len": 2048,
    }  # fmt: skip
    assert deployment.model.tokenizer.dir == TARGET


@pytest.mark.parametrize("kind", WRITERS)
def test_a_quantized_checkpoint_becomes_a_sealed_release(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, release, out = WRITERS[kind](tmp_path / kind), tmp_path / "release", tmp_path / "x.yaml"
    code, report, error = run(capsys, monkeypatch, checkpoint, "--out", out, "--release-dir", release, "--json")
    assert code == 0, error
    manifest = verify(release)
    assert (manifest.provider, manifest.versions, manifest.limits.max_seq_len) == ("vllm", {}, 2048)
    recipe = manifest.recipe["quantization_config"]
    assert isinstance(recipe, dict)
    assert recipe["quant_method"] == kind
    told = {one["setting"]: one["value"] for one in json.loads(report)["settings"]}
    assert told["config.json: quantization_config"] == kind
    assert told["release"] == address(release)
    deployment = load_deployment(out)
    assert deployment.model.release_dir == release
    assert memory_of(deployment.model.engine).weight_bytes == (checkpoint / "model.safetensors").stat().st_size


def test_a_start_looks_for_what_the_deployment_asks(tmp_path: Path) -> None:
    release, out = tmp_path / "release", tmp_path / "x.yaml"
    planned = import_checkpoint(TARGET, out=out, release_dir=release)
    gpu = Gpu(name="NVIDIA H200", sm=90, free_bytes=2**37)
    two = planned.deployment.model.model_copy(
        update={"engine": planned.deployment.model.engine.model_copy(update={"tp_size": 2})}
    )
    one_gpu = Machine(packages={}, gpus=(gpu,), free_host_bytes=2**37)
    assert check_release(release, machine=one_gpu, deployment=planned.deployment.model) == []
    (lacking,) = check_release(release, machine=one_gpu, deployment=two)
    assert (lacking.check, lacking.found, lacking.wanted) == ("world size", "1 GPUs here", "2")
    no_gpu = Machine(packages={}, gpus=(), free_host_bytes=2**37)
    data = {
        **yaml.safe_load(planned.text)["engine"],
        "device": "cpu",
        "kv_cache_bytes": 2**28,
        "dir": release / "engine",
    }
    on_cpu = planned.deployment.model.model_copy(
        update={"engine": type(planned.deployment.model.engine).model_validate(data)}
    )
    assert check_release(release, machine=no_gpu, deployment=on_cpu) == []
    small = Machine(packages={}, gpus=(), free_host_bytes=2**27)
    (memory,) = check_release(release, machine=small, deployment=on_cpu)
    assert memory.check == "memory"
    assert "(host)" in memory.found


def fp8_by_tensor() -> dict[str, object]:
    weights = {"type": "float", "num_bits": 8, "strategy": "tensor"}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


@pytest.mark.parametrize("facts", [{"quant_method": "fp8"}, fp8_by_tensor()])
def test_a_cpu_refuses_fp8_by_tensor(tmp_path: Path, facts: dict[str, object]) -> None:
    release = tmp_path / "release"
    planned = import_checkpoint(changed(tmp_path / "old", quantization_config=facts), out=tmp_path / "x.yaml",
                                release_dir=release)  # fmt: skip
    engine = planned.deployment.model.engine
    data = engine.model_dump() | {"device": "cpu", "kv_cache_bytes": 2**28}
    on_cpu = planned.deployment.model.model_copy(update={"engine": type(engine).model_validate(data)})
    machine = Machine(packages={}, gpus=(), free_host_bytes=2**37)
    (finding,) = check_release(release, machine=machine, deployment=on_cpu)
    assert finding.check == "engine.device"
    assert "one scale for a whole matrix" in finding.found


@pytest.mark.parametrize(
    ("facts", "complaint"),
    [
        ({"quant_method": "exl2"}, "quant_method is 'exl2'"),
        ({"quant_method": "awq", "bits": 3, "group_size": 32}, "bits is 3; awq has 4"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 96}, "needs rows that 96 divides"),
    ],
)
def test_a_format_that_vllm_does_not_read_is_refused(tmp_path: Path, facts: dict[str, object], complaint: str) -> None:
    checkpoint = changed(tmp_path / "old", quantization_config=facts)
    with pytest.raises(SpecError, match=complaint):
        import_checkpoint(checkpoint, out=tmp_path / "x.yaml", release_dir=tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_options_of_a_repository_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, _, error = run(capsys, monkeypatch, TARGET, "--out", tmp_path / "x.yaml", "--sm", 90)
    assert code == 2
    assert "--sm is for a model repository" in error


def test_a_release_inside_the_checkpoint_is_refused(tmp_path: Path) -> None:
    checkpoint = changed(tmp_path / "old")
    with pytest.raises(SpecError, match="an import changes nothing there"):
        import_checkpoint(checkpoint, out=tmp_path / "x.yaml", release_dir=checkpoint / "release")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not is_there(), reason=WHY_NOT)
@pytest.mark.parametrize(
    "write", [pytest.param(write_awq, id="awq"), pytest.param(write_gptq, id="gptq", marks=pytest.mark.soak)]
)
def test_the_release_is_served_by_vllm(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    release = tmp_path / "release"
    import_checkpoint(write(tmp_path / "old"), out=tmp_path / "x.yaml", release_dir=release)
    spec = vllm_spec_of(release, load_manifest(release), VENV).model_copy(update={"num_threads": 1})
    tokenizer = load_tokenizer(TARGET)
    with VllmSide(spec) as side:
        (answer,), _ = side.answers([tokenizer.encode("What is the capital of France?").ids], [24])
    assert tokenizer.decode(answer) == " The capital of France is Paris."
