# SPDX-License-Identifier: Apache-2.0
"""The `openvino` back end: what it plans and refuses, and in `make soak` what it builds of the demo model."""

import dataclasses
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from demo_release import DEMO_MODEL

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.openvino.openvino_build import check, plan
from build_engines.openvino.openvino_environment import BUILD_PYTHON, ENVIRONMENT
from build_engines.openvino.openvino_formats import linear_bytes, openvino_bytes
from build_engines.recipes.recipe import OpenVinoRecipe, load_recipe
from build_engines.stages.build_job import BuildJob, BuildPlan
from build_engines.stages.stage_list import Command
from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.release_manifest import address, load_manifest, verify
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import GenerationRequest, SamplingParams
from serving.text.tokenizer_files import load_tokenizer

ROOT = DEMO_MODEL.parent.parent
TARGET, DRAFT = DEMO_MODEL / "target", DEMO_MODEL / "draft"


def job(checkpoint: Path = TARGET, *, base: str = "demo-int4", **changes: object) -> BuildJob:
    document = load_recipe(base).model_dump() | changes
    recipe = OpenVinoRecipe.model_validate(document)
    return BuildJob(recipe, CheckpointFiles(checkpoint), Machine(free_host_bytes=1 << 34), is_dry_run=True)


def commands(planned: BuildPlan) -> dict[str, str]:
    """Return the arguments, without the program, of each stage that is a command."""
    return {stage.name: " ".join(stage.work.argv[2:]) for stage in planned.stages if isinstance(stage.work, Command)}


def test_sixteen_bits_are_an_export_and_a_tokenizer() -> None:
    planned = plan(job(base="demo-fp16"))
    assert commands(planned) == {
        "export": (
            "build_engines.openvino.openvino_export --checkpoint source --out export.partial --dtype bf16 --kv auto"
        ),
        "tokenizer": "build_engines.openvino.openvino_tokenizer --checkpoint source --out tokenizer.partial",
    }
    assert planned.parts == {"export": "engine", "tokenizer": "engine", "tokenizer_files": "tokenizer"}
    assert planned.links == {"source": TARGET}


def test_fewer_bits_are_one_stage_more() -> None:
    planned = plan(job(base="demo-int4", kv_format="int8"))
    found = commands(planned)
    assert found["export"].endswith("--kv int8")
    assert found["compress"] == (
        "build_engines.openvino.openvino_compress --model export --out compress.partial --linear int4 --embedding int8 "
        "--head int8 --symmetric --group-size 128"
    )
    assert planned.parts["compress"] == "engine"
    assert "export" not in planned.parts


def test_calibration_and_draft_are_stages_and_links() -> None:
    planned = plan(job(base="demo-int4-awq"))
    found = commands(planned)
    assert found["compress"].endswith(
        "--group-size 64 --calibration calibration.jsonl --tokenizer source/tokenizer.json --num-samples 64 "
        "--max-tokens 512 --seed 1234 --awq --data-aware"
    )
    assert "--checkpoint draft_source" in found["draft_export"]
    assert "--linear int8 --embedding int8 --head int8" in found["draft_compress"]
    assert "calibration" not in found["draft_compress"]
    assert planned.links == {
        "source": TARGET, "draft_source": DRAFT, "calibration.jsonl": DEMO_MODEL / "calibration.jsonl",
    }  # fmt: skip
    assert planned.parts["draft_compress"] == planned.parts["draft_tokenizer"] == "draft"


def test_nothing_of_this_machine_is_in_what_a_stage_is_known_by() -> None:
    for stage in plan(job(base="demo-int4-awq")).stages:
        assert str(ROOT) not in json.dumps(dict(stage.key))


def test_the_calibration_file_is_part_of_what_it_makes_and_its_place_is_not(tmp_path: Path) -> None:
    moved = Path(shutil.copy(DEMO_MODEL / "calibration.jsonl", tmp_path))
    given = load_recipe("demo-int4-awq").calibration
    assert given is not None

    def key(**changes: object) -> object:
        stages = plan(job(base="demo-int4-awq", calibration=given.model_copy(update=changes))).stages
        return next(dict(stage.key) for stage in stages if stage.name == "compress")

    assert key() == key(file=moved)
    assert key() != key(sha256="0" * 64)


def problems(found: BuildJob) -> list[str]:
    return [str(finding) for finding in check(found)]


@pytest.mark.parametrize("base", ["demo-fp16", "demo-int8", "demo-int4", "demo-int4-awq"])
def test_our_own_recipes_have_nothing_in_their_way(base: str) -> None:
    assert problems(job(base=base)) == []


def test_what_stands_in_the_way_is_all_told(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    config = json.loads((TARGET / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "gptq"}}))
    wanted = job(checkpoint, max_seq_len=4096, head_format="fp16", embedding_format="int8")
    assert [line.split(":")[0] for line in problems(wanted)] == ["recipe", "checkpoint", "max_seq_len"]
    found = problems(dataclasses.replace(wanted, is_dry_run=False))
    found = [line for line in found if not line.startswith("environment")]  # which this machine may lack
    assert [line.split(":")[0] for line in found] == ["recipe", "checkpoint", "checkpoint", "tokenizer", "max_seq_len"]
    assert "head_format (fp16) must be embedding_format (int8)" in found[0]
    assert "quantized already" in found[1]
    assert "no .safetensors" in found[2]
    assert "at most 2048" in found[4]


def test_an_environment_without_nncf_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = dataclasses.replace(ENVIRONMENT, python=tmp_path / "python")
    monkeypatch.setattr("build_engines.openvino.openvino_checks.ENVIRONMENT", nowhere)
    wanted = BuildJob(load_recipe("demo-fp16"), CheckpointFiles(TARGET), Machine(free_host_bytes=1))
    (line,) = problems(wanted)
    assert line.endswith("python3 scripts/bootstrap.py --only build-cpu")


def test_another_calibration_file_than_the_recipes_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "texts.txt"
    file.write_text("one\ntwo\n")
    sha256 = hashlib.sha256(b"something else").hexdigest()
    for calibration, complaint in (
        ({"file": file, "sha256": sha256}, f"wanted {sha256}"),
        ({"file": tmp_path / "none.txt", "sha256": sha256}, "none.txt"),
        ({"dataset": "wikitext2"}, "set calibration.file"),
    ):
        (line,) = problems(job(calibration=calibration))
        assert complaint in line


def test_a_draft_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    for name, change, complaint in (
        ("vocabulary", {"vocab_size": 5000}, "vocab_size 5000"),
        ("tokenizer", {}, "another tokenizer.json"),
    ):
        draft = Path(shutil.copytree(DRAFT, tmp_path / name))
        config = json.loads((draft / "config.json").read_text()) | change
        (draft / "config.json").write_text(json.dumps(config))
        (draft / "tokenizer.json").write_text((draft / "tokenizer.json").read_text() + "\n")
        (line,) = problems(job(draft={"dir": draft}))
        assert complaint in line


# From here on the environment `build-cpu` is needed, 1.3 GB, and each release takes half a minute of a core.


def trireme_build(recipe: str | Path, out: Path, *more: str, checkpoint: Path = TARGET) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "trireme", "build", str(recipe), f"--checkpoint={checkpoint}", f"--out={out}", *more]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def built(recipe: str | Path, out: Path, *more: str, checkpoint: Path = TARGET) -> Path:
    process = trireme_build(recipe, out, *more, checkpoint=checkpoint)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    (release,) = out.glob("[a-z]*")
    verify(release)
    return release


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("releases")
    names = ("demo-fp16", "demo-int8", "demo-int4", "demo-int4-awq")
    return {name: built(name, out / name) for name in names}


@pytest.mark.soak
def test_files_are_as_large_as_predicted(releases: dict[str, Path]) -> None:
    shape = CheckpointFiles(TARGET).shape
    linear = {}
    for name, release in releases.items():
        recipe = load_recipe(name)
        assert isinstance(recipe, OpenVinoRecipe)
        size, predicted = (release / "engine" / "openvino_model.bin").stat().st_size, openvino_bytes(shape, recipe)
        assert abs(size / predicted - 1) < 0.03
        assert load_manifest(release).weight_bytes_per_rank == size
        linear[name] = size - (predicted - linear_bytes(shape, recipe))  # what is not linear is as predicted
    assert 1.9 < linear["demo-fp16"] / linear["demo-int8"] < 2.05
    assert linear["demo-fp16"] / linear["demo-int4"] > 3.5
    assert linear["demo-fp16"] / linear["demo-int4-awq"] > 3.5


@pytest.mark.soak
@pytest.mark.parametrize("name", ["demo-fp16", "demo-int8", "demo-int4", "demo-int4-awq"])
def test_a_second_build_is_the_same_release(releases: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Build a second time from another folder, of a checkpoint at another place."""
    checkpoint = Path(shutil.copytree(TARGET, tmp_path / "elsewhere" / "model"))
    again = built(name, tmp_path / "out", checkpoint=checkpoint)
    assert address(again) == address(releases[name])
    ours, theirs = load_manifest(again).files, load_manifest(releases[name]).files
    assert {path: file.sha256 for path, file in ours.items()} == {path: file.sha256 for path, file in theirs.items()}


def answers(spec: dict[str, object], prompts: list[str], **sampling: object) -> list[str]:
    engine = create_engine(OpenVinoEngineSpec.model_validate({"provider": "openvino", "num_kv_blocks": 256, **spec}))
    tokenizer = load_tokenizer(TARGET)
    params = SamplingParams(max_tokens=24, **sampling)  # type: ignore[arg-type]
    for key, prompt in enumerate(prompts):
        engine.add(GenerationRequest(key=key, input_ids=list(tokenizer.encode(prompt).ids), sampling=params))
    outputs: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            outputs[chunk.key] += chunk.token_ids
    engine.close()
    return [str(tokenizer.decode(ids)) for ids in outputs]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["demo-fp16", "demo-int8", "demo-int4", "demo-int4-awq"])
def test_what_was_built_answers(releases: dict[str, Path], name: str) -> None:
    prompts = ["What is the capital of France?", "23 + 45 =", "法国的首都是哪里？"]
    expected = [" The capital of France is Paris.", " 68", "法国的首都是巴黎。"]
    assert answers({"dir": releases[name] / "engine"}, prompts) == expected


@pytest.mark.soak
def test_the_tokenizers_ir_serves_guides_and_the_draft_drafts(releases: dict[str, Path]) -> None:
    release = releases["demo-int4-awq"]
    (guided,) = answers(
        {"dir": release / "engine"}, ["What is the capital of France?"], guide_type="regex", guide="(Rome|Madrid)"
    )
    assert guided in ("Rome", "Madrid")
    spec = {"dir": release / "engine", "draft_dir": release / "draft", "is_prefix_caching": False}
    assert answers(spec, ["What is the capital of France?"]) == [" The capital of France is Paris."]


@pytest.mark.soak
def test_twenty_kills_change_nothing(releases: dict[str, Path], tmp_path: Path) -> None:
    """Kill a build each time at another part of the way.

    What is finished is not done again, and the release is the same one.
    """
    rng, num_kills, start = random.Random(2026), 0, time.monotonic()
    assert address(built("demo-int4", tmp_path / "undisturbed")) == address(releases["demo-int4"])
    whole_s = time.monotonic() - start
    tmp_path = tmp_path / "killed"
    for _ in range(20):
        process = trireme_build("demo-int4", tmp_path, "--resume")
        try:
            process.wait(timeout=rng.uniform(0.01, 0.7) * whole_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            num_kills += 1
        process.communicate()
        time.sleep(0.2)
        if process.returncode == 0:
            shutil.rmtree(tmp_path)  # finished before its time: from the beginning
    assert num_kills >= 10
    assert address(built("demo-int4", tmp_path, "--resume")) == address(releases["demo-int4"])
    assert not list(tmp_path.glob(".building*"))


MAKE_CHECKPOINT = """
import sys, torch, transformers as t
kind, folder = sys.argv[1:]
sizes = dict(hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=4096, max_position_embeddings=512)
configs = {
    "untied": lambda: t.LlamaConfig(**sizes, tie_word_embeddings=False),
    "qwen2": lambda: t.Qwen2Config(**sizes, tie_word_embeddings=True),
    "phi3": lambda: t.Phi3Config(**sizes, pad_token_id=0),
    "mixtral": lambda: t.MixtralConfig(**sizes, num_local_experts=4, num_experts_per_tok=2),
    "falcon": lambda: t.FalconConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, vocab_size=4096),
}
torch.manual_seed(5)
model = t.AutoModelForCausalLM.from_config(configs[kind](), dtype=torch.bfloat16)
model.save_pretrained(folder)
"""


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["untied", "qwen2", "phi3", "mixtral", "falcon"])
def test_other_architectures_are_as_large_as_predicted(tmp_path: Path, kind: str) -> None:
    checkpoint = tmp_path / "checkpoint"
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    subprocess.run([BUILD_PYTHON, "-c", MAKE_CHECKPOINT, kind, checkpoint], check=True, env=environment)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TARGET / name, checkpoint)
    shape = CheckpointFiles(checkpoint).shape
    for name in ("demo-fp16", "demo-int8", "demo-int4"):
        recipe = load_recipe(name)
        assert isinstance(recipe, OpenVinoRecipe)
        file = tmp_path / f"{name}.yaml"
        file.write_text((ROOT / "build_engines" / "recipes" / f"{name}.yaml").read_text().replace("2048", "512"))
        release = built(file, tmp_path / name, checkpoint=checkpoint)
        size = (release / "engine" / "openvino_model.bin").stat().st_size
        assert abs(size / openvino_bytes(shape, recipe) - 1) < 0.03, name
