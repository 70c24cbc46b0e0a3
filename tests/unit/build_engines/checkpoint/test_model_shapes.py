# SPDX-License-Identifier: Apache-2.0
"""Parameters and bytes of known models, against what their publishers state."""

import json
from pathlib import Path

import pytest

from build_engines.checkpoint.checkpoint_config import load_model_shape, read_model_shape
from build_engines.checkpoint.gpus import gpu_named, gpus
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_shape import ExpertMlp
from build_engines.checkpoint.weight_formats import KV_FORMATS, WEIGHT_FORMATS, FormatPlan
from build_engines.checkpoint.weight_table import Role, num_active_parameters, num_parameters, weights_of
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model/target"


@pytest.mark.parametrize("name", known_models())
def test_parameters_are_exact(name: str) -> None:
    published = known_models()[name]
    assert num_parameters(read_model_shape(published.config)) == published.num_parameters


@pytest.mark.parametrize(
    ("name", "kv_values"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128),
        ("llama-3.1-70b", 2 * 80 * 8 * 128),
        ("llama-3.1-405b", 2 * 126 * 8 * 128),
        ("mixtral-8x7b", 2 * 32 * 8 * 128),
        ("deepseek-v3", 61 * (512 + 64)),
        ("qwen2.5-7b", 2 * 28 * 4 * 128),
    ],
)
def test_kv_bytes_per_token_are_exact(name: str, kv_values: int) -> None:
    model = read_model_shape(known_models()[name].config)
    found = sum(layer.attention.kv_values_per_token for layer in model.layers)
    assert found == kv_values
    assert found * KV_FORMATS["fp16"] == 2 * kv_values


def test_the_demo_models_table_is_its_checkpoint() -> None:
    data = (DEMO / "model.safetensors").read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    stored = {name: tuple(facts["shape"]) for name, facts in header.items() if name != "__metadata__"}
    assert {weight.name: weight.shape for weight in weights_of(load_model_shape(DEMO))} == stored


def test_a_mixture_counts_the_chosen_experts() -> None:
    mixtral = read_model_shape(known_models()["mixtral-8x7b"].config)
    idle = 32 * 6 * 3 * 4096 * 14336  # 6 of 8 experts in each layer
    assert num_active_parameters(mixtral) == num_parameters(mixtral) - idle
    experts = mixtral.expert_layers[0]
    assert experts.experts_met(1) == pytest.approx(2)
    assert experts.experts_met(1_000) == pytest.approx(8)


def test_a_sliding_window_bounds_what_a_layer_reads() -> None:
    gemma = read_model_shape(known_models()["gemma-2-9b"].config)
    assert [layer.sliding_window for layer in gemma.layers[:4]] == [4096, None, 4096, None]
    assert gemma.layers[0].kept_tokens(10_000) == 4096
    assert gemma.layers[1].kept_tokens(10_000) == 10_000


def test_bytes_of_a_matrix_in_each_format() -> None:
    shape, size = (4096, 1024), 4096 * 1024
    expected = {
        "fp16": 2 * size,
        "bf16": 2 * size,
        "int8_weight_only": size + 2 * 4096,
        "smoothquant": size + 4 * 4096 + 4 * 1024,
        "int4_weight_only": size / 2 + 2 * 4096,
        "int4_awq": size / 2 + 2 * size / 128 + 2 * 1024,
        "int4_gptq": size / 2 + 4 * size / 128,
        "fp8": size + 4,
        "fp8_rowwise": size + 4 * 4096,
        "fp8_block": size + 4 * 32 * 8,
        "w4a8_awq": size / 2 + 2 * size / 128 + 2 * 1024,
        "nvfp4": size / 2 + size / 16,
    }
    assert {name: each.num_bytes(shape) for name, each in WEIGHT_FORMATS.items()} == expected


def test_experts_in_one_tensor_weigh_as_much_as_apart() -> None:
    awq = WEIGHT_FORMATS["int4_awq"]
    assert awq.num_bytes((8, 256, 512)) == 8 * awq.num_bytes((256, 512))


def test_int4_shrinks_a_70b_by_72_percent_and_an_8b_by_64() -> None:
    plan = FormatPlan(WEIGHT_FORMATS["int4_awq"])
    for name, gigabytes in (("llama-3.1-70b", 39.7), ("llama-3.1-8b", 5.73)):
        weights = weights_of(read_model_shape(known_models()[name].config))
        assert plan.num_bytes(weights) / 1e9 == pytest.approx(gigabytes, rel=0.01)


def test_norms_routers_and_biases_keep_16_bits() -> None:
    plan = FormatPlan(WEIGHT_FORMATS["nvfp4"])
    kept = {weight.role for weight in weights_of(read_model_shape(known_models()["gpt-oss-20b"].config))
            if plan.of(weight).bits == 16 and not weight.is_bias}  # fmt: skip
    assert kept == {Role.EMBEDDING, Role.HEAD, Role.NORM, Role.ROUTER, Role.SINK}


LLAMA = known_models()["llama-3.1-8b"].config


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "architecture 'BertForMaskedLM' is not known here; there are "),
        ({"architectures": None}, "architectures is missing"),
        ({"num_hidden_layers": None}, "num_hidden_layers is missing"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers must be a whole number, at least 0; got '32'"),
        ({"vocab_size": 0}, "vocab_size must be a whole number, at least 1; got 0"),
        ({"hidden_size": 0}, "hidden_size must be a whole number, at least 1; got 0"),
        ({"num_attention_heads": 0}, "num_attention_heads must be a whole number, at least 1; got 0"),
        ({"head_dim": 0}, "head_dim must be a whole number, at least 1; got 0"),
        ({"hidden_size": 10**200}, "hidden_size must be at most 1,000,000,000,000; got 1000"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be at most 10,000; got 1000000000"),
        ({"num_key_value_heads": 5}, r"num_attention_heads / num_key_value_heads \(32 / 5\) is not a whole number"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false; got 1"),
        ({"layer_types": ["full_attention"]}, "layer_types must be 32 of full_attention or sliding_attention"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_by_name(change: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_model_shape(LLAMA | change)


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot read"), ("{", "is not JSON"), ("[" * 10**5, "is not JSON"), ("[]", "holds no object")],
)
def test_a_file_that_is_no_config_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SpecError, match=words):
        load_model_shape(tmp_path)


def test_gpus_are_found_by_name_and_title() -> None:
    assert gpu_named("H100").sm == 90
    assert gpu_named("l40s").link_gbs == 32  # by PCIe
    assert gpu_named("H100-SXM-80GB") is gpu_named("h100")
    with pytest.raises(SpecError, match="gpu 'h101' is not known here; there are a100-40, "):
        gpu_named("h101")


def test_every_gpu_can_run_every_format_of_its_sm() -> None:
    for gpu in gpus().values():
        legal = [each for each in WEIGHT_FORMATS.values() if gpu.sm in each.sms]
        assert legal
        for each in legal:
            assert gpu.tflops[each.compute] > 0


def test_mla_experts_are_read() -> None:
    model = read_model_shape(known_models()["deepseek-v3"].config)
    assert len(model.expert_layers) == 58
    assert model.expert_layers[0] == ExpertMlp(256, 8, 2048, shared_intermediate_size=2048, has_router_bias=True)
    assert num_active_parameters(model) / 1e9 == pytest.approx(37.6, abs=0.1)


@pytest.mark.parametrize(
    ("form", "norms"),
    [
        ({}, {"input_layernorm"}),  # 7B
        ({"new_decoder_architecture": True, "num_kv_heads": 2}, {"ln_attn", "ln_mlp"}),  # 40B, 180B
        (
            {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
            {"input_layernorm"},
        ),  # 11B
        ({"parallel_attn": False, "multi_query": False}, {"input_layernorm", "post_attention_layernorm"}),  # RW-1B
    ],
)
def test_falcons_norms_are_called_as_in_its_four_forms(form: dict[str, object], norms: set[str]) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = read_model_shape({"architectures": ["FalconForCausalLM"], **sizes, **form})
    names = [weight.name for weight in weights_of(model) if weight.role is Role.NORM and weight.layer == 0]
    assert {name.split(".")[3] for name in names} == norms
