# SPDX-License-Identifier: Apache-2.0
"""Every flag that is emitted is in the facts with a legal value, and every field of a recipe reaches a command."""

import copy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from trtllm_tools import FACTS, PROGRAMS, flags_of, parser_of, write_fake_tools

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.weight_formats import KV_FORMAT_SMS, WEIGHT_FORMATS
from build_engines.recipes import trtllm_versions
from build_engines.recipes.build_route import needs_calibration, route
from build_engines.recipes.recipe import PyTorchRecipe, Recipe, TensorRtRecipe, load_recipe, recipe_names
from build_engines.recipes.recipe_checks import check_recipe
from build_engines.recipes.recipe_parts import BuilderSpec, LoraRecipe, MedusaRecipe, Plugins, SmoothQuantSpec
from build_engines.tensorrt_llm.trtllm_commands import (
    convert_argv,
    hf_ptq_argv,
    quantize_argv,
    trtllm_build_argv,
    without_machine_flags,
)

EXAMPLES = Path("/app/examples")
MODELS = {
    "llama-3.1-8b": "llama-3.1-8b", "llama-3-8b": "llama-3.1-8b", "llama-3.1-70b": "llama-3.1-70b",
    "llama-2-7b": "llama-2-7b", "mixtral-8x7b": "mixtral-8x7b", "qwen2.5-7b": "qwen2.5-7b", "deepseek": "deepseek-v3",
}  # fmt: skip
GPU_RECIPES = [name for name in recipe_names() if isinstance(load_recipe(name), TensorRtRecipe | PyTorchRecipe)]


def model_of(name: str) -> str:
    return next(model for prefix, model in MODELS.items() if name.startswith(prefix))


def commands(recipe: Recipe, architecture: str) -> dict[str, list[str]]:
    """Return all commands that a recipe runs, by upstream's name of the program."""
    match recipe:
        case TensorRtRecipe():
            argvs = {"trtllm-build": trtllm_build_argv(recipe, 2)}
            if route(recipe, architecture) == "quantize":
                argvs["quantization/quantize.py"] = quantize_argv(recipe, EXAMPLES)
            elif route(recipe, architecture) == "convert":
                argvs["models/core/llama/convert_checkpoint.py"] = convert_argv(recipe, EXAMPLES, 2)
            return argvs
        case PyTorchRecipe() if recipe.calibration is not None:
            return {"llm_ptq/hf_ptq.py": hf_ptq_argv(recipe, EXAMPLES)}
    return {}


def arguments(program: str, argv: list[str]) -> list[str]:
    """Return a command without the program, and without the interpreter of a script."""
    start = 2 if argv[0] == "python3" else 1
    assert argv[start - 1].endswith(program)
    return argv[start:]


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_every_flag_of_every_command_is_in_the_facts_with_a_legal_value(name: str) -> None:
    recipe = load_recipe(name)
    architecture = str(known_models()[model_of(name)].config["architectures"][0])  # type: ignore[index]
    for program, argv in commands(recipe, architecture).items():
        flags, words = flags_of(program), arguments(program, argv)
        emitted = [word for word in words if word.startswith("--")]
        assert set(emitted) <= set(flags)
        assert len(emitted) == len(set(emitted))
        assert not [flag for flag in emitted if flags[flag].get("deprecated")]
        parser_of(flags).parse_args(words)  # ends the test where a value is not legal
        for flag, fact in flags.items():
            if flag in emitted and "allowed" in fact:
                assert words[words.index(flag) + 1] in fact["allowed"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_strict_parser_refuses_what_the_facts_do_not_have(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = parser_of(flags_of(program))
    for words in (["--tp"], ["--no_such_flag", "1"]):
        with pytest.raises(SystemExit):
            parser.parse_args(words)
    capsys.readouterr()


def test_a_fake_of_a_tool_is_a_program_that_says_what_is_wrong(tmp_path: Path) -> None:
    tools = write_fake_tools(tmp_path)
    result = subprocess.run(
        [str(tools.bin / "trtllm-build"), "--max_output_len", "5"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "unrecognized arguments: --max_output_len 5" in result.stderr


# Fields that no command of upstream's gets, each with the place where it counts.
ELSEWHERE = {
    "name": "the release's folder and manifest",
    "model": "the manifest",
    "backend": "which back end runs",
    "gpu": "checked before; the manifest",
    "tensorrt_llm": "checked before; the manifest",
    "quality": "the gate, after the build",
    "calibration.file": "linked into the work folder, under one name",
    "calibration.sha256": "the stage that lays the file out",
    "speculation.method": "chooses the flags",
    "speculation.dir": "linked into the work folder, under one name",
    "gptq_file": "linked into the work folder; whether it is set chooses flags",
    "checkpoint_form": "chooses the stages",
}


def variants(recipe: TensorRtRecipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each field, down to the leaves, with the document in which it alone is different."""
    document = recipe.model_dump(mode="json")
    yield from _changed(recipe, document, (), document)


def _changed(
    spec: BaseModel, part: dict[str, Any], at: tuple[str, ...], document: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in part.items():
        child = getattr(spec, name)
        if isinstance(child, BaseModel) and (*at, name) != ("quality",):
            yield from _changed(child, value, (*at, name), document)
            continue
        other = OTHER.get(name, _other(value))
        changed = copy.deepcopy(document)
        place = changed
        for step in at:
            place = place[step]
        place[name] = other
        yield ".".join((*at, name)), changed


def _other(value: object) -> object:
    match value:
        case bool():
            return not value
        case int():
            return value * 2
        case float():
            return value / 2
    return "another"


# Where the next number or word would not be a legal one.
OTHER: dict[str, object] = {
    "dtype": "float16", "kv_cache_type": "continuous", "logits_dtype": "float16", "embedding": "hidden",
    "opt_num_tokens": 1024, "log_level": "debug", "calibration_device_map": "cpu", "num_workers": 3,
    "max_input_len": 1000, "max_seq_len": 5000, "kv_format": "int8", "hidden_act": "gelu", "format": "bf16",
    "gemm_plugin": "bfloat16", "gpt_attention_plugin": "bfloat16", "nccl_plugin": "bfloat16", "moe_plugin": "bfloat16",
    "fp8_rowwise_gemm_plugin": "auto", "gemm_swiglu_plugin": "fp8", "low_latency_gemm_plugin": "fp8",
    "low_latency_gemm_swiglu_plugin": "fp8", "gemm_allreduce_plugin": "bfloat16", "target_modules": ["attn_q"],
    "plugin": "bfloat16", "sha256": "1" * 64, "dataset": "pileval", "smoothquant": {"alpha": 0.25},
    "speculation": {"method": "draft_tokens_external", "max_draft_len": 3},
    "calibration": {"dataset": "cnn_dailymail"}, "extra_build_args": {"profiling_verbosity": "detailed"},
}  # fmt: skip


def full_recipes() -> dict[str, TensorRtRecipe]:
    """Return one recipe for each way to an engine, with as many fields in use as can be."""
    base: dict[str, Any] = {
        "name": "full", "model": "m", "backend": "tensorrt", "gpu": "h100", "max_input_len": 2048, "max_seq_len": 4096,
        "opt_num_tokens": 512, "calibration": {"dataset": "cnn_dailymail", "num_samples": 16},
        "lora": LoraRecipe(target_modules=("attn_qkv",)).model_dump(), "tp_size": 4,
    }  # fmt: skip
    medusa = {"method": "medusa", "dir": "heads"}
    lookahead = {"method": "lookahead", "window_size": 4, "ngram_size": 4, "verification_set_size": 4}
    recipes = {
        "quantize": {**base, "format": "int4_awq", "speculation": medusa},
        "quantize fp8": {**base, "format": "fp8", "speculation": {"method": "eagle", "max_draft_len": 4}},
        "convert": {
            **base, "format": "smoothquant", "ep_size": 2, "smoothquant": SmoothQuantSpec().model_dump(),
            "embedding": "vocab", "speculation": lookahead,
        },
        "convert gptq": {**base, "format": "int4_gptq", "gptq_file": "gptq.safetensors", "calibration": None},
    }  # fmt: skip
    return {name: TensorRtRecipe.model_validate(values) for name, values in recipes.items()}


# Fields that a way does not use; a recipe that sets one there is refused, which the next test but one shows.
REFUSED = {
    "quantize": ("ep_size", "embedding", "smoothquant", "gptq_file", "is_head_quantized"),
    "quantize fp8": ("ep_size", "embedding", "smoothquant", "gptq_file", "group_size"),
    "convert": ("is_head_quantized", "gptq_file", "group_size", "calibration.batch_size", "calibration.seed"),
    "convert gptq": ("is_head_quantized", "smoothquant", "calibration"),
}
# Settings of the machine that this way's script does not have.
NOT_IN_WAY = {
    "quantize": (),
    "quantize fp8": (),
    "convert": ("builder.calibration_device_map",),
    "convert gptq": ("builder.calibration_device_map",),
}


@pytest.mark.parametrize(("way", "recipe"), full_recipes().items(), ids=full_recipes())
def test_every_field_changes_a_command_or_is_known_to_count_elsewhere(way: str, recipe: TensorRtRecipe) -> None:
    def argvs(each: TensorRtRecipe) -> dict[str, list[str]]:
        workers = each.builder.num_workers or 1
        made = commands(each, "LlamaForCausalLM")
        return made | {"trtllm-build": trtllm_build_argv(each, workers)}

    plain, missing = argvs(recipe), []
    seen = set()
    for field, document in variants(recipe):
        seen.add(field)
        if field in ELSEWHERE or field in (*REFUSED[way], *NOT_IN_WAY[way]):
            continue
        if argvs(TensorRtRecipe.model_validate(document)) == plain:
            missing.append(field)
    assert missing == []
    assert len(seen) > 50


@pytest.mark.parametrize(("way", "recipe"), full_recipes().items(), ids=full_recipes())
def test_a_field_that_a_way_does_not_use_is_refused_there(way: str, recipe: TensorRtRecipe) -> None:
    model = read_model_shape(known_models()["mixtral-8x7b"].config)  # has experts
    changed = dict(variants(recipe))
    for field in REFUSED[way]:
        if field == "gptq_file":
            changed[field]["gptq_file"] = "x.safetensors"
        findings = check_recipe(TensorRtRecipe.model_validate(changed[field]), model, gpu_named("h100"))
        assert field in {finding.check for finding in findings}, field


def test_the_list_of_fields_that_count_elsewhere_names_only_fields() -> None:
    fields = {field for recipe in full_recipes().values() for field, _ in variants(recipe)}
    assert {field for field in ELSEWHERE if not field.startswith("calibration")} <= fields


def test_plugins_are_flags_of_trtllm_build_and_so_are_their_choices() -> None:
    flags = flags_of("trtllm-build")
    for name in Plugins.model_fields:
        assert flags[f"--{name}"]["group"] == "plugin"
    # What is left out needs no setting: encoders, state-space models, what upstream forbids or we name by other fields.
    plugins = {flag.removeprefix("--") for flag, fact in flags.items() if fact.get("group") == "plugin"}
    assert plugins - set(Plugins.model_fields) == {
        "bert_attention_plugin", "bert_context_fmha_fp32_acc", "lora_plugin", "mamba_conv1d_plugin", "dora_plugin",
        "paged_state", "streamingllm", "tokens_per_block",
    }  # fmt: skip


def test_quantize_knows_our_formats_by_the_names_of_the_facts() -> None:
    choices = flags_of("quantization/quantize.py")["--qformat"]["choices"]
    assert set(trtllm_versions.QUANTIZE_FORMATS.values()) == set(choices)
    assert set(trtllm_versions.HF_PTQ_FORMATS.values()) <= set(flags_of("llm_ptq/hf_ptq.py")["--qformat"]["allowed"])


def test_quantization_names_are_those_of_the_facts() -> None:
    facts = yaml.safe_load((FACTS / "quant_algos.json").read_text())
    known = {*facts["QuantAlgo"], None, "FP8_PB_WO"}  # the last is ModelOpt's
    assert {algo for algos in trtllm_versions.QUANT_ALGOS.values() for algo in algos} <= known
    assert set(trtllm_versions.KV_QUANT_ALGOS.values()) - {None} == set(facts["KV_CACHE_QUANT_ALGO_LIST"])
    assert set(trtllm_versions.QUANT_ALGOS) == set(WEIGHT_FORMATS)


def test_what_blackwell_refuses_is_the_facts_list() -> None:
    facts = yaml.safe_load((FACTS / "build_config_fields.json").read_text())
    assert {*trtllm_versions.NOT_ON_SM_100, "bert_context_fmha_fp32_acc"} == set(facts["sm100_unsupported"])


@pytest.mark.parametrize(
    ("column", "formats"),
    [
        ("NVFP4", ["nvfp4"]),
        ("FP8_per_tensor", ["fp8"]),
        ("FP8_block", ["fp8_block"]),
        ("FP8_rowwise", ["fp8_rowwise"]),
        ("W4A8_AWQ", ["w4a8_awq"]),
        ("W4A16_AWQ", ["int4_awq"]),
        ("W4A16_GPTQ", ["int4_gptq"]),
    ],
)
def test_which_gpu_runs_which_format_is_the_facts_table(column: str, formats: list[str]) -> None:
    rows = yaml.safe_load((FACTS / "quant_algos.json").read_text())["hardware"]["rows"]
    for row, cells in rows.items():
        for sm in (80, 86) if row == "sm80/86" else (int(row.removeprefix("sm")),):
            for name in formats:
                assert (sm in WEIGHT_FORMATS[name].sms) == cells[column], (name, sm)
            assert (sm in KV_FORMAT_SMS["fp8"]) == cells["FP8_KV"]


def test_machine_flags_do_not_count_for_what_a_command_makes() -> None:
    recipe = full_recipes()["convert"]
    builder = BuilderSpec(num_workers=8, log_level="debug", calibration_device_map="cpu")
    other = recipe.model_copy(update={"builder": builder})
    for argv, again in (
        (trtllm_build_argv(recipe, 1), trtllm_build_argv(other, 8)),
        (convert_argv(recipe, EXAMPLES, 1), convert_argv(other, Path("/elsewhere"), 8)),
        (quantize_argv(full_recipes()["quantize"], EXAMPLES), quantize_argv(full_recipes()["quantize"], Path("/else"))),
    ):
        assert argv != again
        assert without_machine_flags(argv) == without_machine_flags(again)


@pytest.mark.parametrize(
    ("name", "way", "is_calibrated"),
    [
        ("llama-3.1-8b-fp8-h100", "quantize", True),
        ("llama-3.1-70b-int4-awq-tp2-a100-80", "quantize", True),
        ("llama-3-8b-gptq-a10g", "convert", False),
        ("llama-3.1-8b-smoothquant-a100-80", "convert", True),
        ("mixtral-8x7b-int8-weight-only-tp2-a100-80", "convert", False),
        ("llama-3.1-70b-fp8-rowwise-tp4-pp2-h100", "convert", False),
        ("qwen2.5-7b-int4-weight-only-l4", "quantize", False),
        ("llama-2-7b-medusa-fp8-h100", "quantize", True),
    ],
)
def test_each_recipe_goes_the_way_that_upstream_has_for_it(name: str, way: str, is_calibrated: bool) -> None:
    recipe = load_recipe(name)
    assert isinstance(recipe, TensorRtRecipe)
    architecture = read_model_shape(known_models()[model_of(name)].config).architecture
    assert route(recipe, architecture) == way
    assert needs_calibration(recipe, architecture) == is_calibrated


def test_lookahead_drafts_as_many_as_upstreams_formula() -> None:
    recipe = load_recipe("llama-3.1-8b-lookahead-h100")
    assert isinstance(recipe, TensorRtRecipe)
    argv = trtllm_build_argv(recipe, 1)
    assert argv[argv.index("--speculative_decoding_mode") + 1] == "lookahead_decoding"
    assert argv[argv.index("--max_draft_len") + 1] == "83"  # 7, 7, 7: upstream's example has this number


def test_a_gptq_checkpoint_needs_no_flags_and_a_file_beside_it_does() -> None:
    recipe = load_recipe("llama-3-8b-gptq-a10g")
    assert isinstance(recipe, TensorRtRecipe)
    assert "--use_weight_only" not in convert_argv(recipe, EXAMPLES, 1)
    argv = convert_argv(recipe.model_copy(update={"gptq_file": Path("/x/y.safetensors")}), EXAMPLES, 1)
    text = " ".join(argv)
    assert "--use_weight_only --weight_only_precision int4_gptq --per_group --quant_ckpt_path gptq.safetensors" in text


def test_medusa_heads_are_named_from_the_work_folder() -> None:
    recipe = load_recipe("llama-2-7b-medusa-fp8-h100")
    assert isinstance(recipe, TensorRtRecipe)
    assert isinstance(recipe.speculation, MedusaRecipe)
    argv = quantize_argv(recipe, EXAMPLES)
    assert argv[argv.index("--medusa_model_dir") + 1] == "medusa"


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_our_recipes_have_nothing_against_them(name: str) -> None:
    recipe = load_recipe(name)
    assert isinstance(recipe, TensorRtRecipe | PyTorchRecipe)
    model = read_model_shape(known_models()[model_of(name)].config)
    assert check_recipe(recipe, model, gpu_named(recipe.gpu), {"tensorrt_llm": "1.2.1"}) == []
