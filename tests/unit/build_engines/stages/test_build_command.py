# SPDX-License-Identifier: Apache-2.0
"""`trireme build` with stand-ins of upstream's tools that are made from the facts: what it makes."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from build_runs import DEMO, SAMPLES, TRIREME, build, built, content, write_recipe
from trtllm_tools import FakeTools, write_fake_tools

from ensemble_configs.releases.release_manifest import PROVENANCE_FILE, address, load_manifest, verify
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> FakeTools:
    return write_fake_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what files hashed to


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


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
    assert manifest.step_costs is not None
    assert manifest.step_costs.model_dump() == {
        # The demo's head is its embedding, 4096 x 256 in 16 bits. The matrices of its 5 layers are in FP8, each with a
        # scale of 4 bytes: queries and outputs 256 x 256, keys and values 128 x 256, three of 768 x 256; 11 norms.
        "weight_bytes": 2 * 4096 * 256 + 5 * (256 * (2 * 256 + 2 * 128 + 3 * 768) + 7 * 4) + 2 * 11 * 256,
        "flops_per_token": 2 * (4096 * 256 + 5 * 256 * (2 * 256 + 2 * 128 + 3 * 768) + 11 * 256),
        "kv_bytes_per_token": 2 * manifest.kv_bytes_per_token,  # of both ranks
        "peak_bandwidth_bytes_per_s": 2 * 3350 * 10**9,  # two H100 by their datasheet
        "peak_flops": 2 * 19789 * 10**11,
    }
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
    result = subprocess.run([*argv, "--dry-run"], cwd=CODE_ROOT, capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert any(line.startswith("  python3 /app/examples/quantization/quantize.py --model_dir source") for line in lines)
    assert any(line.startswith("  trtllm-build --checkpoint_dir checkpoint") for line in lines)
    assert any("estimated" in line and "of disk" in line for line in lines)
    assert f"  ln -s {config.parent} source" in lines


WAYS: dict[str, dict[str, object]] = {
    "convert": {"format": "bf16", "kv_format": None, "calibration": None},
    "smoothquant": {"format": "smoothquant", "kv_format": "int8", "plugins": {"use_paged_context_fmha": False}},
    "weight only": {"format": "int8_weight_only", "kv_format": None, "calibration": None},
    "lookahead": {
        "format": "bf16", "kv_format": None, "calibration": None,
        "speculation": {"method": "lookahead", "window_size": 4, "ngram_size": 3, "verification_set_size": 4},
    },
    "lora": {"format": "bf16", "kv_format": None, "calibration": None, "lora": {"target_modules": ["attn_q"]}},
    "pipeline": {"format": "fp8_rowwise", "kv_format": None, "tp_size": 1, "pp_size": 2, "calibration": None},
    "awq": {"format": "int4_awq", "kv_format": "int8", "tp_size": 1, "plugins": {"use_paged_context_fmha": False}},
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
