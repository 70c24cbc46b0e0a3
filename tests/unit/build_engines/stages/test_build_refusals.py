# SPDX-License-Identifier: Apache-2.0
"""The refusals of `trireme build`: before any work, and of what a tool has made."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from build_runs import DEMO, SAMPLES, TRIREME, build, write_recipe
from trtllm_tools import FakeTools, write_fake_tools

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.recipes.recipe import load_recipe
from build_engines.stages.build import plan_job
from build_engines.stages.build_job import BuildJob
from ensemble_configs.releases.machine import Machine
from trireme.base.errors import BuildError
from trireme.base.project_files import CODE_ROOT


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> FakeTools:
    return write_fake_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what files hashed to


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


def test_a_calibration_set_that_is_not_the_recipes_is_refused(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "calibration.txt").write_text(SAMPLES + "one more\n")
    result = build(tools, recipe, tmp_path / "out")
    assert result.returncode == 2
    assert "calibration.sha256: found" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_calibration_set_with_too_few_samples_is_refused(tools: FakeTools, tmp_path: Path) -> None:
    calibration = {"file": "calibration.txt", "num_samples": 7}
    result = build(tools, write_recipe(tmp_path, calibration=calibration), tmp_path / "out")
    assert "has 6 samples, fewer than calibration.num_samples (7)" in result.stderr


def test_every_finding_is_shown_before_any_work(tools: FakeTools, tmp_path: Path) -> None:
    wrong = write_recipe(
        tmp_path, gpu="a100-80", calibration=None, max_seq_len=4096, plugins={"user_buffer": True}, group_size=64
    )
    result = build(tools, wrong, tmp_path / "out")
    assert result.returncode == 2
    for words in (
        "format: found fp8, wanted",
        "max_seq_len: found 4096, wanted at most 2048",
        "calibration: found nothing",
        "machine: found a GPU with sm_90, wanted sm_80",
        "group_size: found 64",
        "plugins.user_buffer: found true",
    ):
        assert words in result.stderr
    assert not (tmp_path / "out").exists()


def test_what_the_machine_lacks_is_named(recipe: Path, tmp_path: Path) -> None:
    result = subprocess.run(
        [*TRIREME, str(recipe), f"--checkpoint={DEMO}", f"--out={tmp_path / 'out'}"],
        env=os.environ | {"PATH": "/nowhere"},
        cwd=CODE_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    for words in ("no GPU", "no tensorrt_llm", "no trtllm-build on PATH", "--trtllm-examples: found no /app/examples"):
        assert words in result.stderr


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"architectures": ["NewForCausalLM"]}, "NewForCausalLM"),
        ({"auto_map": {"AutoModel": "x.Y"}}, "wants remote code (auto_map)"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantized already (awq)"),
    ],
)
def test_a_checkpoint_that_the_recipe_cannot_start_from_is_refused(
    tools: FakeTools, recipe: Path, tmp_path: Path, config: dict[str, object], named: str
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    plain = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(plain | config))
    result = build(tools, recipe, tmp_path / "out", checkpoint=checkpoint)
    assert result.returncode == 2
    assert named in result.stderr


def compiled(**build: int) -> dict[str, object]:
    limits = {
        "max_batch_size": 64, "max_num_tokens": 1024, "max_input_len": 512, "max_seq_len": 1024, "max_beam_width": 1,
    }  # fmt: skip
    mapping = {"world_size": 2, "tp_size": 2, "pp_size": 1}
    return {"pretrained_config": {"mapping": mapping}, "build_config": limits | build}


@pytest.mark.parametrize(
    ("ranks", "config", "named"),
    [
        (("0", "1"), compiled(), None),
        (("0",), compiled(), r"wrote no rank1\.engine"),
        (("0", "1"), None, r"wrote no config\.json"),
        (("0", "1"), compiled(max_num_tokens=512), r"build_config\.max_num_tokens 512, and the recipe 1024"),
        (("0", "1"), compiled() | {"pretrained_config": {"mapping": {}}}, r"mapping\.tp_size 1, and the recipe 2"),
        (("0", "1"), {}, "no pretrained_config and build_config"),
    ],
    ids=["whole", "a rank missing", "no config", "a limit lowered", "another mapping", "an empty config"],
)
def test_an_engine_is_looked_at_whatever_the_compiler_said(
    recipe: Path, tmp_path: Path, ranks: tuple[str, ...], config: dict[str, object] | None, named: str | None
) -> None:
    job = BuildJob(load_recipe(recipe), CheckpointFiles(DEMO), Machine(free_host_bytes=1 << 40), is_dry_run=True)
    engine = next(stage for stage in plan_job(job).stages if stage.name == "engine")
    folder = tmp_path / "engine"
    folder.mkdir()
    for rank in ranks:
        (folder / f"rank{rank}.engine").write_bytes(b"engine")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    assert engine.check is not None
    if named is None:
        engine.check(folder)
        return
    with pytest.raises(BuildError, match=named):
        engine.check(folder)
