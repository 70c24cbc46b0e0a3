# SPDX-License-Identifier: Apache-2.0
"""`trireme build` with stand-ins of upstream's tools that are made from the facts: what it makes, and what stops it."""

import contextlib
import hashlib
import io
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from trtllm_tools import FakeTools, write_fake_tools

from ensemble_configs.release_manifest import PROVENANCE_FILE, address, load_manifest, verify
from trireme.commands import run_command

DEMO = Path(__file__).parents[2] / "examples/demo_model/target"
TRIREME = [sys.executable, "-m", "trireme", "build"]
ROOT = Path(__file__).parents[2]

TENSORRT = {
    "name": "demo-fp8", "model": "examples/demo_model", "backend": "tensorrt", "gpu": "h100", "format": "fp8",
    "kv_format": "fp8", "tp_size": 2, "max_input_len": 512, "max_seq_len": 1024, "max_num_tokens": 1024,
    "calibration": {"file": "calibration.txt", "sha256": None, "num_samples": 4},
}  # fmt: skip
SAMPLES = "".join(f"sample number {number}\n" for number in range(6))


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> FakeTools:
    return write_fake_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what files hashed to


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


def write_recipe(folder: Path, **changes: object) -> Path:
    document = TENSORRT | changes
    calibration = document.get("calibration")
    if isinstance(calibration, dict) and "file" in calibration:
        sha256 = hashlib.sha256(SAMPLES.encode()).hexdigest()
        document["calibration"] = calibration | {"sha256": calibration.get("sha256") or sha256}
    (folder / "calibration.txt").write_text(SAMPLES)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({key: value for key, value in document.items() if value is not None}))
    return path


def arguments(tools: FakeTools, recipe: Path | str, out: Path, *more: str, checkpoint: Path = DEMO) -> list[str]:
    return [*TRIREME, str(recipe), f"--checkpoint={checkpoint}", f"--out={out}", *tools.options, *more]


class Result(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


def build(
    tools: FakeTools, recipe: Path | str, out: Path, *more: str, checkpoint: Path = DEMO, **environment: str
) -> Result:
    """The command in this process; only its tools are others."""
    argv = arguments(tools, recipe, out, *more, checkpoint=checkpoint)[len(TRIREME) :]
    said, shown = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (tools.environment() | environment).items():
            patch.setenv(name, value)
        patch.syspath_prepend(str(tools.site))
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(shown), pytest.raises(SystemExit) as ended:
            run_command("build", argv)
    return Result(int(ended.value.code or 0), said.getvalue(), shown.getvalue())


def built(result: Result) -> Path:
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.split()[0])


def content(release: Path) -> dict[str, bytes]:
    files = (path for path in release.rglob("*") if path.is_file() and path.name != PROVENANCE_FILE)
    return {path.relative_to(release).as_posix(): path.read_bytes() for path in files}


def test_a_recipe_becomes_a_sealed_release(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "releases"
    result = build(tools, recipe, out)
    release = built(result)
    manifest = verify(release)
    assert release.name == f"demo-fp8-{address(release)[:12]}"
    assert sorted(manifest.files) == sorted(
        [
            "engine/config.json", "engine/generation_config.json", "engine/rank0.engine", "engine/rank1.engine",
            "tokenizer/special_tokens_map.json", "tokenizer/tokenizer.json", "tokenizer/tokenizer_config.json",
        ]
    )  # fmt: skip
    assert (manifest.provider, manifest.sm, manifest.world_size, manifest.tp_size) == ("tensorrt", 90, 2, 2)
    assert manifest.versions == {"tensorrt_llm": "1.2.1", "tensorrt": "10.14.1.48.post1"}
    assert manifest.kv_bytes_per_token == 2 * 5 * 1 * 64  # K and V, 5 layers, 1 of 2 heads, 64 values, 1 byte
    assert manifest.weight_bytes_per_rank == (release / "engine/rank0.engine").stat().st_size
    assert [path.name for path in out.iterdir() if path.name.startswith(".building")] == []
    provenance = json.loads((release / PROVENANCE_FILE).read_text())
    assert set(provenance["details"]["stage_seconds"]) == {"look", "calibration", "checkpoint", "engine", "texts"}
    assert "--qformat fp8" in provenance["details"]["commands"]["checkpoint"]
    assert "quantize: rank 1 of 2" in (out / ".logs" / release.name / "03-checkpoint.log").read_text()


def test_progress_is_plain_lines_where_there_is_no_terminal(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    lines = build(tools, recipe, tmp_path / "out").stderr.splitlines()
    assert "[3/5] checkpoint: quantize.py: fp8, 2 ranks ..." in lines
    assert any(re.fullmatch(r"\[4/5\] engine: done in \d+\.\d s", line) for line in lines)


def test_the_same_build_makes_the_same_release_anywhere(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    first = built(build(tools, recipe, tmp_path / "prompt"))  # "mpt" in a path misleads upstream's scripts
    copy = tmp_path / "copy"
    shutil.copytree(DEMO, copy)
    second = built(build(tools, recipe, tmp_path / "two", checkpoint=copy))
    assert first.name == second.name
    assert content(first) == content(second)


def test_a_release_that_is_there_already_is_left_alone(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    first = built(build(tools, recipe, tmp_path / "out"))
    before = (first / PROVENANCE_FILE).read_bytes()
    again = build(tools, recipe, tmp_path / "out", "--json")
    assert json.loads(again.stdout) == {"release": str(first), "address": address(first), "is_new": False}
    assert (first / PROVENANCE_FILE).read_bytes() == before


def test_a_failed_stage_leaves_the_old_release_whole_and_the_new_one_absent(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    old = built(build(tools, recipe, out))
    before = content(old)
    other = write_recipe(tmp_path, max_batch_size=8)
    failed = build(tools, other, out, FAKE_TOOL_FAILS="trtllm-build")
    assert failed.returncode == 2
    assert "stage engine failed: trtllm-build ended with status 1" in failed.stderr
    assert "    RuntimeError: trtllm-build fails as it was told to" in failed.stderr
    assert "04-engine.log" in failed.stderr
    assert content(old) == before
    assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == [old.name]
    refused = build(tools, other, out)
    assert refused.returncode == 2
    assert (
        "with finished stages: look, calibration, checkpoint; go on from there with --resume, or start anew"
        in refused.stderr
    )
    resumed = build(tools, other, out, "--resume")
    assert "[3/5] checkpoint: finished earlier" in resumed.stderr
    assert verify(built(resumed)).limits.max_batch_size == 8


def test_a_refused_checkpoint_leaves_nothing_and_is_refused_before_any_tool_runs(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    (checkpoint / "model.safetensors").write_bytes((DEMO / "model.safetensors").read_bytes()[:-1000])
    result = build(tools, recipe, tmp_path / "out", checkpoint=checkpoint)
    assert result.returncode == 2
    assert "model.safetensors" in result.stderr
    assert not list((tmp_path / "out").iterdir())


def test_ctrl_c_keeps_what_is_finished(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        arguments(tools, recipe, out),
        env=tools.environment() | {"FAKE_TOOL_DELAY_S": "1"},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if line.startswith("[4/5] engine: trtllm-build"):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.wait(timeout=30) == 130
    assert "interrupted; finished stages are kept" in said
    assert not list(out.glob(".building-*/*.partial"))
    resumed = build(tools, recipe, out, "--resume")
    assert content(built(resumed)) == content(built(build(tools, recipe, tmp_path / "elsewhere")))
    assert "checkpoint: finished earlier" in resumed.stderr


def killed_at(process: "subprocess.Popen[bytes]", delay_s: float) -> bool:
    """Kill a build after so long; whether it was still running."""
    try:
        process.wait(timeout=delay_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def check_a_killed_build(
    tools: FakeTools, recipe: Path, tmp_path: Path, seeds: Sequence[int], *, kills_each: int
) -> None:
    """Kill -9 at a random moment, go on, and compare with a build that nobody disturbed."""
    environment = tools.environment() | {"FAKE_TOOL_DELAY_S": "0.2"}
    whole = tmp_path / "whole"
    start = time.monotonic()
    subprocess.run(arguments(tools, recipe, whole), env=environment, cwd=ROOT, capture_output=True, check=True)
    whole_s = time.monotonic() - start
    undisturbed = content(next(whole.glob("demo-*")))
    num_kills = 0
    for seed in seeds:
        out = tmp_path / f"killed-{seed}"
        chance = random.Random(seed)
        for _ in range(kills_each):  # a resumed build is killed, too
            process = subprocess.Popen(
                arguments(tools, recipe, out, "--resume"),
                env=environment,
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            num_kills += killed_at(process, chance.uniform(0.3, 1.0) * whole_s)
            for release in out.glob("demo-*"):
                verify(release)  # whole, or not there
        assert content(built(build(tools, recipe, out, "--resume"))) == undisturbed, seed
        assert not list(out.glob(".building-*"))
    assert num_kills > len(seeds) // 2  # some come when the build is over


def test_a_build_killed_at_any_moment_goes_on_to_the_same_release(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    check_a_killed_build(tools, recipe, tmp_path, range(5), kills_each=1)


@pytest.mark.soak
def test_twenty_builds_killed_at_any_moment_go_on_to_the_same_release(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    check_a_killed_build(tools, recipe, tmp_path, range(20), kills_each=2)


def check_builds_that_die(tmp_path: Path, every: int) -> None:
    script = ROOT / "tests/fakes/crashing_builds.py"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "crashes"), f"--every={every}"],
        env=os.environ | {"PYTHONPATH": f"{ROOT}:{script.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 50


def test_a_build_that_dies_before_any_change_to_the_disk_is_made_up_for(tmp_path: Path) -> None:
    check_builds_that_die(tmp_path, every=7)


@pytest.mark.soak
def test_a_build_that_dies_before_each_change_to_the_disk_is_made_up_for(tmp_path: Path) -> None:
    check_builds_that_die(tmp_path, every=1)


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_to_load(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # the kernel refuses more, as a full disk does

    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    result = subprocess.run(
        arguments(tools, recipe, out, checkpoint=checkpoint),
        env=tools.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=small_files,
    )
    assert result.returncode == 2
    assert "stage checkpoint failed" in result.stderr
    assert "is full" in result.stderr
    assert not list(out.glob("demo-*"))
    assert not list(out.glob(".building-*/checkpoint*"))
    built(build(tools, recipe, out, "--resume", checkpoint=checkpoint))


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
        cwd=ROOT,
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


def test_a_dry_run_prints_the_commands_that_a_build_runs(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = build(tools, recipe, out, "--dry-run", "--json")
    plan = json.loads(result.stdout)
    assert not out.exists()
    release = built(build(tools, recipe, out))
    ran = json.loads((release / PROVENANCE_FILE).read_text())["details"]["commands"]
    planned = {stage["name"]: " ".join(stage["argv"]) for stage in plan["stages"] if stage["argv"]}
    assert planned == ran
    assert all(stage["estimate"]["disk_bytes"] > 0 for stage in plan["stages"] if stage["argv"])


def test_a_dry_run_needs_no_gpu_and_no_weights(tmp_path: Path) -> None:
    config = tmp_path / "model" / "config.json"
    config.parent.mkdir()
    shutil.copy(DEMO / "config.json", config)
    (tmp_path / "calibration.txt").write_text(SAMPLES)
    argv = [*TRIREME, str(write_recipe(tmp_path)), f"--checkpoint={config.parent}", f"--out={tmp_path / 'out'}"]
    result = subprocess.run([*argv, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert any(line.startswith("  python3 /app/examples/quantization/quantize.py --model_dir source") for line in lines)
    assert any(line.startswith("  trtllm-build --checkpoint_dir checkpoint") for line in lines)
    assert any("estimated" in line and "of disk" in line for line in lines)
    assert f"  ln -s {config.parent} source" in lines


WAYS: dict[str, dict[str, object]] = {
    "convert": {"format": "bf16", "kv_format": None, "calibration": None},
    "smoothquant": {"format": "smoothquant", "kv_format": "int8"},
    "weight only": {"format": "int8_weight_only", "kv_format": None, "calibration": None},
    "lookahead": {
        "format": "bf16", "kv_format": None, "calibration": None,
        "speculation": {"method": "lookahead", "window_size": 4, "ngram_size": 3, "verification_set_size": 4},
    },
    "lora": {"format": "bf16", "kv_format": None, "calibration": None, "lora": {"target_modules": ["attn_q"]}},
    "pipeline": {"format": "fp8_rowwise", "tp_size": 1, "pp_size": 2, "calibration": None},
    "awq": {"format": "int4_awq", "kv_format": "int8", "tp_size": 1},
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_an_engine_passes_the_strict_tools(tools: FakeTools, tmp_path: Path, way: str) -> None:
    release = built(build(tools, write_recipe(tmp_path, **WAYS[way]), tmp_path / "out"))
    config = json.loads((release / "engine/config.json").read_text())
    manifest = load_manifest(release)
    assert config["pretrained_config"]["mapping"]["world_size"] == manifest.world_size


def test_medusa_heads_go_into_the_engine(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    heads = tmp_path / "heads"
    heads.mkdir()
    (heads / "config.json").write_text('{"medusa_num_heads": 4}')
    speculation = {"method": "medusa", "dir": "heads"}
    release = built(build(tools, write_recipe(tmp_path, speculation=speculation), tmp_path / "out"))
    assert json.loads((release / "engine/config.json").read_text())["pretrained_config"]["num_medusa_heads"] == 4
    shutil.rmtree(heads)
    missing = build(tools, recipe, tmp_path / "out2")
    assert f"speculation.dir: found nothing at {heads}" in missing.stderr


def test_a_gptq_checkpoint_is_taken_as_it_says_it_is(tools: FakeTools, tmp_path: Path) -> None:
    checkpoint = tmp_path / "gptq"
    shutil.copytree(DEMO, checkpoint)
    plain = json.loads((checkpoint / "config.json").read_text())
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
    (checkpoint / "config.json").write_text(json.dumps(plain | {"quantization_config": gptq}))
    own = write_recipe(tmp_path, format="int4_gptq", kv_format=None, calibration=None, tp_size=1)
    release = built(build(tools, own, tmp_path / "out", checkpoint=checkpoint))
    config = json.loads((release / "engine/config.json").read_text())
    assert config["pretrained_config"]["quantization"]["quant_algo"] == "W4A16_GPTQ"
    (checkpoint / "config.json").write_text(json.dumps(plain | {"quantization_config": gptq | {"desc_act": True}}))
    refused = build(tools, own, tmp_path / "out2", checkpoint=checkpoint)
    assert "checkpoint quantization_config.desc_act: found true, wanted false" in refused.stderr


PYTORCH = {"backend": "pytorch", "max_input_len": None}


def test_the_pytorch_back_end_quantizes_and_records_launch_and_shards(tools: FakeTools, tmp_path: Path) -> None:
    own = write_recipe(
        tmp_path,
        **PYTORCH,
        calibration={"dataset": "cnn_dailymail"},
        speculation={"method": "ngram", "max_draft_len": 3},
    )
    release = built(build(tools, own, tmp_path / "out"))
    assert verify(release).provider == "pytorch"
    launch = yaml.safe_load((release / "launch.yaml").read_text())
    assert (launch["tp_size"], launch["kv_cache_dtype"], launch["speculation"]["max_draft_len"]) == (2, "fp8", 3)
    shards = json.loads((release / "shards.json").read_text())
    assert [rank["tp_rank"] for rank in shards["ranks"]] == [0, 1]
    quantized = json.loads((release / "engine/hf_quant_config.json").read_text())["quantization"]
    assert quantized == {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}


def test_a_checkpoint_that_is_quantized_already_is_checked_and_copied(tools: FakeTools, tmp_path: Path) -> None:
    checkpoint = tmp_path / "quantized"
    shutil.copytree(DEMO, checkpoint)
    algos = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}
    (checkpoint / "hf_quant_config.json").write_text(json.dumps({"quantization": algos}))
    own = write_recipe(tmp_path, **PYTORCH, calibration=None)
    release = built(build(tools, own, tmp_path / "out", checkpoint=checkpoint))
    assert (release / "engine/model.safetensors").read_bytes() == (DEMO / "model.safetensors").read_bytes()
    other = write_recipe(tmp_path, **PYTORCH, calibration=None, format="fp8_rowwise")
    refused = build(tools, other, tmp_path / "out", checkpoint=checkpoint)
    assert "the checkpoint is FP8, and the recipe wants fp8_rowwise" in refused.stderr


def test_a_plain_checkpoint_needs_calibration_to_become_fp8(tools: FakeTools, tmp_path: Path) -> None:
    refused = build(tools, write_recipe(tmp_path, **PYTORCH, calibration=None), tmp_path / "out")
    assert "calibration: found nothing, wanted a dataset, to quantize this checkpoint" in refused.stderr


def test_a_checkpoint_that_upstreams_script_made_goes_straight_to_the_compiler(
    tools: FakeTools, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "eagle"
    script = tools.trtllm_examples / "models/core/llama/convert_checkpoint.py"
    subprocess.run(
        [sys.executable, str(script), "--model_dir", str(DEMO), "--output_dir", str(checkpoint), "--tp_size", "2"],
        check=True,
        capture_output=True,
    )
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"architecture": "EagleForCausalLM"}))
    shutil.copy(DEMO / "tokenizer.json", checkpoint)
    own = write_recipe(
        tmp_path,
        format="bf16",
        kv_format=None,
        calibration=None,
        checkpoint_form="tensorrt_llm",
        speculation={"method": "eagle", "max_draft_len": 8},
    )
    result = build(tools, own, tmp_path / "out", checkpoint=checkpoint)
    assert "[1/2] engine" in result.stderr
    engine = json.loads((built(result) / "engine/config.json").read_text())
    assert engine["build_config"]["max_draft_len"] == 8
    plain = build(tools, own, tmp_path / "out")
    assert "checkpoint_form: found a checkpoint of form hugging_face, wanted tensorrt_llm" in plain.stderr
    (checkpoint / "rank1.safetensors").unlink()
    short = build(tools, own, tmp_path / "out", checkpoint=checkpoint)
    assert "the checkpoint has 1 rank files, for 2 x 1 ranks" in short.stderr
