# SPDX-License-Identifier: Apache-2.0
"""The rules for recipes: each fires and says what to do, and all that is wrong is named at once."""

from typing import Any

import pytest

from build_engines.checkpoint.checkpoint_config import read_model_shape
from build_engines.checkpoint.gpus import gpu_named
from build_engines.checkpoint.known_models import known_models
from build_engines.recipes.recipe import GpuRecipe, OpenVinoRecipe, PyTorchRecipe, TensorRtRecipe
from build_engines.recipes.recipe_checks import check_recipe
from ensemble_configs.spec.finding import Finding

CALIBRATION = {"dataset": "cnn_dailymail", "num_samples": 32}
LOOKAHEAD = {"method": "lookahead", "window_size": 4, "ngram_size": 4, "verification_set_size": 4}
EAGLE = {"method": "eagle", "max_draft_len": 4}
MEDUSA = {"method": "medusa", "dir": "heads"}
BASE = {"name": "x", "model": "m", "gpu": "h100", "format": "bf16"}


def recipe_of(backend: str, **values: Any) -> GpuRecipe:
    document = BASE | {"backend": backend} | values
    return TensorRtRecipe.model_validate(document) if backend == "tensorrt" else PyTorchRecipe.model_validate(document)


def findings(
    backend: str, model: str = "llama-3.1-8b", versions: dict[str, str] | None = None, **values: Any
) -> list[Finding]:
    recipe = recipe_of(backend, **values)
    return check_recipe(recipe, read_model_shape(known_models()[model].config), gpu_named(recipe.gpu), versions)


def test_a_plain_recipe_has_nothing_against_it() -> None:
    assert findings("tensorrt") == []
    assert findings("pytorch") == []


# back end, what differs from the plain recipe, the field that is named, and words of allowed or next step
TABLE: list[tuple[str, dict[str, Any], str, str]] = [
    # what the GPU runs
    ("tensorrt", {"gpu": "a100-80", "format": "fp8", "calibration": CALIBRATION}, "format", "int8_weight_only"),
    ("tensorrt", {"gpu": "b200", "format": "int4_awq", "calibration": CALIBRATION}, "format", "nvfp4"),
    ("tensorrt", {"gpu": "l40s", "format": "fp8_rowwise"}, "format", "on l40s (SM 89)"),
    ("pytorch", {"gpu": "h100", "format": "nvfp4"}, "format", "on h100 (SM 90)"),
    ("pytorch", {"gpu": "h100", "kv_format": "nvfp4"}, "kv_format", "on h100 (SM 90)"),
    ("tensorrt", {"gpu": "b200", "kv_format": "int8", "calibration": CALIBRATION}, "kv_format", "on b200 (SM 100)"),
    # what versions have
    ("tensorrt", {"tensorrt_llm": "1.3.0"}, "tensorrt_llm", "1.3 has no engines any more"),
    ("tensorrt", {"tensorrt_llm": "0.9.0"}, "tensorrt_llm", "1.2.1"),
    ("tensorrt", {"versions": {"tensorrt_llm": "1.1.0"}}, "tensorrt_llm", "26.04 to 26.07"),
    # what the PyTorch backend lacks
    ("pytorch", {"format": "int4_gptq"}, "format", "backend tensorrt"),
    ("pytorch", {"format": "smoothquant"}, "format", "backend tensorrt"),
    ("pytorch", {"format": "int8_weight_only"}, "format", "backend tensorrt"),
    ("pytorch", {"kv_format": "int8"}, "kv_format", "auto, fp16, fp8, nvfp4"),
    ("pytorch", {"speculation": MEDUSA}, "speculation.method", "ngram"),
    ("pytorch", {"speculation": LOOKAHEAD}, "speculation.method", "backend tensorrt"),
    ("pytorch", {"is_head_quantized": True}, "is_head_quantized", "leave it out"),
    ("pytorch", {"calibration": CALIBRATION}, "calibration", "bf16 is not calibrated"),
    (
        "pytorch",
        {"format": "fp8", "calibration": {"file": "a.txt", "sha256": "0" * 64}},
        "calibration.file",
        "hf_ptq.py knows names only",
    ),
    ("pytorch", {"format": "fp8", "calibration": CALIBRATION | {"seed": 7}}, "calibration.seed", "cannot set it"),
    ("pytorch", {"format": "int4_awq", "kv_format": "fp8"}, "kv_format", "no attention kernel for an FP8 KV cache"),
    # what trtllm-build turns off without an error
    (
        "tensorrt",
        {"format": "smoothquant", "kv_format": "int8", "calibration": CALIBRATION},
        "plugins.use_paged_context_fmha",
        "is_chunked_prefill and is_block_reuse in the deployment",
    ),
    ("tensorrt", {"format": "fp8_rowwise", "kv_format": "fp8"}, "plugins.use_paged_context_fmha", "fp8, nvfp4"),
    (
        "tensorrt",
        {"kv_format": "int8", "speculation": EAGLE, "checkpoint_form": "tensorrt_llm"},
        "kv_format",
        "EAGLE, which needs it",
    ),
    ("tensorrt", {"plugins": {"reduce_fusion": True}}, "plugins.reduce_fusion", "tp_size above 1"),
    ("tensorrt", {"plugins": {"norm_quant_fusion": True}}, "plugins.norm_quant_fusion", "NVFP4 Llama"),
    # what engines lack
    ("tensorrt", {"format": "fp8_block"}, "format", "backend pytorch"),
    ("tensorrt", {"gpu": "b200", "kv_format": "nvfp4"}, "kv_format", "backend pytorch"),
    ("tensorrt", {"speculation": {"method": "mtp"}}, "speculation.method", "backend pytorch"),
    ("tensorrt", {"speculation": {"method": "eagle", "max_draft_len": 4}}, "checkpoint_form", "upstream's script"),
    ("tensorrt", {"model": "deepseek-v3", "tp_size": 16}, "backend", "LlamaForCausalLM"),
    ("tensorrt", {"model": "qwen2.5-7b", "format": "int4_gptq"}, "format", "quantize.py has no GPTQ"),
    ("tensorrt", {"dtype": "float16"}, "dtype", "bfloat16"),
    # calibration
    ("tensorrt", {"format": "fp8"}, "calibration", "add calibration"),
    ("tensorrt", {"calibration": CALIBRATION}, "calibration", "bf16 is not calibrated"),
    (
        "tensorrt",
        {"format": "int4_awq", "calibration": CALIBRATION | {"num_samples": 512}},
        "calibration.num_samples",
        "at most 32",
    ),
    (
        "tensorrt",
        {"format": "smoothquant", "calibration": CALIBRATION | {"batch_size": 8}},
        "calibration.batch_size",
        "convert_checkpoint.py cannot set it",
    ),
    # upstream's own rules
    (
        "tensorrt",
        {"is_gathering_context_logits": True, "speculation": LOOKAHEAD},
        "is_gathering_context_logits",
        "max_draft_len > 0",
    ),
    ("tensorrt", {"opt_num_tokens": 8, "plugins": {"multiple_profiles": True}}, "opt_num_tokens", "multiple_profiles"),
    ("tensorrt", {"gpu": "b200", "plugins": {"gemm_swiglu_plugin": "fp8"}}, "plugins.gemm_swiglu_plugin", "SM 100"),
    (
        "tensorrt",
        {"gpu": "b200", "plugins": {"fp8_rowwise_gemm_plugin": "auto"}},
        "plugins.fp8_rowwise_gemm_plugin",
        "SM 100",
    ),
    ("tensorrt", {"plugins": {"user_buffer": True}}, "plugins.user_buffer", "FP8 Llama with reduce_fusion"),
    ("tensorrt", {"plugins": {"pp_reduce_scatter": True}}, "plugins.pp_reduce_scatter", "false for LlamaForCausalLM"),
    ("tensorrt", {"plugins": {"gemm_plugin": "fp8"}}, "plugins.gemm_plugin", "with format bf16"),
    ("tensorrt", {"plugins": {"remove_input_padding": False}}, "plugins.remove_input_padding", "in-flight batching"),
    ("tensorrt", {"kv_cache_type": "continuous"}, "kv_cache_type", "paged"),
    (
        "tensorrt",
        {"plugins": {"use_paged_context_fmha": False}, "max_num_tokens": 1024},
        "max_num_tokens",
        "at least max_input_len (4096)",
    ),
    ("tensorrt", {"max_batch_size": 1, "max_num_tokens": 16384}, "max_num_tokens", "max_batch_size (8192)"),
    # sizes
    ("tensorrt", {"tp_size": 3}, "tp_size", "num_attention_heads"),
    ("tensorrt", {"pp_size": 64}, "pp_size", "more than the model's 32 layers"),
    ("tensorrt", {"tp_size": 2, "ep_size": 2}, "ep_size", "has no experts"),
    ("tensorrt", {"model": "llama-3.1-70b"}, "tp_size", "less than the 79.18 GiB of h100"),
    ("tensorrt", {"max_seq_len": 200_000}, "max_seq_len", "at most 131072"),
    ("tensorrt", {"group_size": 64}, "group_size", "bf16 has no groups"),
    (
        "tensorrt",
        {"model": "qwen2.5-72b", "format": "int4_awq", "tp_size": 8, "calibration": CALIBRATION},
        "tp_size",
        "cuts a group in two",
    ),
    ("tensorrt", {"is_head_quantized": True}, "is_head_quantized", "format fp8"),
]  # fmt: skip


@pytest.mark.parametrize(("backend", "values", "field", "words"), TABLE, ids=lambda value: str(value)[:50])
def test_each_rule_fires_and_says_what_to_do(backend: str, values: dict[str, Any], field: str, words: str) -> None:
    found = [each for each in findings(backend, **values) if each.check == field]
    assert found, findings(backend, **values)
    assert words in str(found[0])
    assert found[0].next_step


def test_all_that_is_wrong_is_named_at_once() -> None:
    found = findings(
        "pytorch",
        gpu="a100-80",
        format="int4_gptq",
        kv_format="int8",
        speculation=MEDUSA,
        tp_size=3,
        versions={"tensorrt_llm": "1.3.0"},
    )
    assert {each.check for each in found} == {"tensorrt_llm", "format", "kv_format", "speculation.method", "tp_size"}


def test_a_release_candidate_counts_as_its_version() -> None:
    assert findings("pytorch", tensorrt_llm="1.3.0rc22", versions={"tensorrt_llm": "1.3.0rc22"}) == []


def test_a_recipe_for_the_cpu_needs_no_gpu() -> None:
    values = {"name": "x", "model": "m", "backend": "openvino", "format": "int8", "max_seq_len": 1 << 20}
    model = read_model_shape(known_models()["llama-3.1-8b"].config)
    assert [each.check for each in check_recipe(OpenVinoRecipe.model_validate(values), model, None)] == ["max_seq_len"]
