# SPDX-License-Identifier: Apache-2.0
"""Parameters and bytes of known models, against what their publishers state."""

import json
from pathlib import Path

import pytest

from build_engines.checkpoint.checkpoint_config import load_model_shape, read_model_shape, read_whole_model_shape
from build_engines.checkpoint.gpus import gpu_named, gpus
from build_engines.checkpoint.known_models import known_models
from build_engines.checkpoint.model_shape import ExpertMlp, GroupedAttention, LinearAttention
from build_engines.checkpoint.weight_formats import KV_FORMATS, WEIGHT_FORMATS, FormatPlan
from build_engines.checkpoint.weight_table import Role, num_active_parameters, num_parameters, weights_of
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model/target"
LLAMA = known_models()["llama-3.1-8b"].config


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
        ("qwen3-next-80b-a3b", 2 * 12 * 2 * 256),  # 12 of its 48 layers have a KV cache
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


# What publishers' files hold beside the text part, counted by hand from their config.json. Of the vision towers: layers
# of attention and feed-forward network, patches, positions, norms; then what joins the tower to the text part.
_SIGLIP = 27 * (4 * 1152 * 1153 + 2 * 1152 * 4304 + 4304 + 1152 + 4 * 1152) + 589 * 1152 + 4096 * 1152 + 2 * 1152
_PIXTRAL = 24 * (4 * 1024**2 + 3 * 1024 * 4096 + 2 * 1024) + 588 * 1024 + 1024
_LLAMA_4_VISION = (
    34 * (4 * 1408 * 1409 + 2 * 1408 * 5632 + 5632 + 1408 + 4 * 1408) + 588 * 1408 + 578 * 1408 + 4 * 1408
    + 5632 * 4096 + 4096**2 + 4096 * 5120
)  # fmt: skip


def _further_token_layer(hidden: int, expert: int, num_experts: int, qk_norms: int, copies: int) -> int:
    """Count GLM's layer that predicts a further token, with its copies of embedding and head."""
    attention = 2 * 96 * 128 * hidden + 96 * 128 + 2 * (8 * 128 * hidden + 8 * 128) + qk_norms
    experts = (num_experts + 1) * 3 * hidden * expert + num_experts * (hidden + 1)
    return attention + experts + 2 * hidden + 2 * hidden**2 + 3 * hidden + copies * 151552 * hidden


def _qwen3_next_further_token() -> int:
    """Count Qwen3-Next's part that predicts a further token: a layer of full attention, what joins it, its norms."""
    attention = (2 * 16 + 2 * 2 + 16) * 256 * 2048 + 2 * 256  # queries and gates, keys and values, output; two norms
    experts = 3 * 513 * 2048 * 512 + 512 * 2048 + 2048  # with the shared one; router, gate of the shared one
    return attention + experts + 2 * 2048 + 2 * 2048 * 2048 + 3 * 2048


@pytest.mark.parametrize(
    ("name", "published", "beside"),
    [
        ("gemma-3-4b", 4_300_079_472, _SIGLIP + 1152 * 2560 + 1152),
        ("gemma-3-12b", 12_187_325_040, _SIGLIP + 1152 * 3840 + 1152),
        ("gemma-3-27b", 27_432_406_640, _SIGLIP + 1152 * 5376 + 1152),
        ("mistral-small-3.1-24b", 24_011_361_280, _PIXTRAL + 1024 + 4096 * 1024 + 1024 * 5120 + 5120**2),
        ("llama-4-scout", 108_641_793_536, _LLAMA_4_VISION),
        ("llama-4-maverick", 401_583_781_376, _LLAMA_4_VISION),
        ("glm-4.5", 358_337_791_296, _further_token_layer(5120, 1536, 160, 256, 2)),
        ("glm-4.5-air", 110_468_824_832, _further_token_layer(4096, 1408, 128, 0, 2)),
        ("glm-4.6", 356_785_898_816, _further_token_layer(5120, 1536, 160, 256, 0)),
        ("qwen3-next-80b-a3b", 81_324_862_720, _qwen3_next_further_token()),
    ],
)
def test_parameters_and_what_is_beside_them_are_all_that_is_published(name: str, published: int, beside: int) -> None:
    assert known_models()[name].num_parameters + beside == published


@pytest.mark.parametrize("name", known_models())
def test_the_longest_sequence_of_a_known_model_is_stated(name: str) -> None:
    config = known_models()[name].config
    stated = {**config, **config.get("text_config", {})}  # type: ignore[dict-item]
    is_default = name.startswith("gemma-3")  # its text_config leaves out what is the default
    assert {"max_position_embeddings", "n_positions"} & set(stated) or is_default
    assert read_model_shape(config).max_position_embeddings >= 2048


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


def test_llama_4_has_chunks_in_three_layers_of_four_and_experts_in_some() -> None:
    scout, maverick = (read_model_shape(known_models()[f"llama-4-{name}"].config) for name in ("scout", "maverick"))
    assert [layer.sliding_window for layer in scout.layers[:5]] == [8192, 8192, 8192, None, 8192]
    assert scout.expert_layers[0] == ExpertMlp(16, 1, 8192, shared_intermediate_size=8192)
    assert (len(scout.expert_layers), len(maverick.expert_layers)) == (48, 24)
    assert [isinstance(layer.mlp, ExpertMlp) for layer in maverick.layers[:4]] == [False, True, False, True]
    # Published as 17B active; the embedding is counted, too.
    assert num_active_parameters(scout) / 1e9 == pytest.approx(17.2, abs=0.1)


LLAMA_4 = known_models()["llama-4-maverick"].config
LLAMA_4_TEXT: dict[str, object] = {**LLAMA_4["text_config"], "num_hidden_layers": 4}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("change", "chunks", "experts"),
    [
        ({"no_rope_layers": [1, 0, 1, 1]}, [8192, None, 8192, 8192], [1, 3]),
        ({"no_rope_layers": []}, [8192, 8192, 8192, None], [1, 3]),
        ({"no_rope_layer_interval": 2}, [8192, None, 8192, None], [1, 3]),
        ({"layer_types": ["full_attention"] * 3 + ["chunked_attention"]}, [None, None, None, 8192], [1, 3]),
        ({"attention_chunk_size": None}, [None] * 4, [1, 3]),
        ({"moe_layers": [0]}, [8192, 8192, 8192, None], [0]),
    ],
)
def test_llama_4_says_in_several_ways_which_layer_is_which(
    change: dict[str, object], chunks: list[int | None], experts: list[int]
) -> None:
    model = read_model_shape({"architectures": ["Llama4ForCausalLM"], **LLAMA_4_TEXT, **change})
    assert [layer.sliding_window for layer in model.layers] == chunks
    assert [index for index, layer in enumerate(model.layers) if isinstance(layer.mlp, ExpertMlp)] == experts
    assert not model.has_vision


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"no_rope_layers": [1]}, r"no_rope_layers must be 4 of 0 or 1; got \[1\]"),
        ({"moe_layers": ["a"]}, "moe_layers must be a list of at most 10,000 whole numbers"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types must be 4 of full_attention or chunked_attention"),
    ],
)
def test_a_llama_4_that_does_not_say_it_right_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_model_shape({"architectures": ["Llama4ForCausalLM"], **LLAMA_4_TEXT, **change})


QWEN2 = {name: value for name, value in known_models()["qwen2.5-7b"].config.items() if name != "architectures"}
QWEN3 = {name: value for name, value in known_models()["qwen3-4b"].config.items() if name != "architectures"}
QWEN3_MOE = {name: value for name, value in known_models()["qwen3-30b-a3b"].config.items() if name != "architectures"}


@pytest.mark.parametrize(
    ("config", "num_parameters_of", "name"),
    [
        ({"architectures": ["Qwen2VLForConditionalGeneration"], **QWEN2}, "qwen2.5-7b", "model.layers.0.mlp.up_proj"),
        (
            {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "text_config": QWEN2},
            "qwen2.5-7b",
            "model.layers.0.mlp.up_proj",
        ),
        (
            {
                "architectures": ["Qwen3VLForConditionalGeneration"],
                "tie_word_embeddings": True,
                "text_config": {key: value for key, value in QWEN3.items() if key != "tie_word_embeddings"},
            },
            "qwen3-4b",
            "model.language_model.layers.0.mlp.up_proj",
        ),
        (
            {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "text_config": QWEN3_MOE},
            "qwen3-30b-a3b",
            "model.language_model.layers.0.mlp.experts.gate_up_proj",
        ),
    ],
)
def test_the_text_part_of_a_model_that_sees_is_as_large_as_one_that_does_not(
    config: dict[str, object], num_parameters_of: str, name: str
) -> None:
    model = read_model_shape(config)
    assert model.has_vision
    assert num_parameters(model) == known_models()[num_parameters_of].num_parameters
    assert name in {weight.name.removesuffix(".weight") for weight in weights_of(model)}


def test_what_is_wrong_in_a_text_part_is_named_with_its_place() -> None:
    config = {"architectures": ["Qwen3VLForConditionalGeneration"], "text_config": QWEN3 | {"vocab_size": None}}
    with pytest.raises(SpecError, match=r"config.json: text_config.vocab_size is missing"):
        read_model_shape(config)
    with pytest.raises(SpecError, match=r"text_config.head_dim must be a whole number, at least 0; got 'a'"):
        read_model_shape(config | {"text_config": QWEN3 | {"head_dim": "a"}})
    with pytest.raises(SpecError, match="text_config must be an object of keys and values; got 3"):
        read_model_shape(config | {"text_config": 3})


def test_gemma_3s_text_part_has_the_defaults_of_its_class() -> None:
    model = read_model_shape(known_models()["gemma-3-4b"].config)
    assert model.vocab_size == 262208
    assert model.attention == GroupedAttention(8, 4, 256, has_qk_norm=True)
    assert [layer.sliding_window for layer in model.layers[:7]] == [1024] * 5 + [None, 1024]


def test_layers_of_qwen3_that_have_no_experts_are_read() -> None:
    model = read_model_shape(known_models()["qwen3-30b-a3b"].config | {"mlp_only_layers": [0, 2]})
    assert [isinstance(layer.mlp, ExpertMlp) for layer in model.layers[:4]] == [False, True, False, True]


QWEN3_NEXT = known_models()["qwen3-next-80b-a3b"].config


def test_qwen3_next_has_linear_attention_in_three_layers_of_four() -> None:
    model = read_model_shape(QWEN3_NEXT)
    linear = LinearAttention(16, 32, 128, 128, 4)
    full = GroupedAttention(16, 2, 256, has_qk_norm=True, has_output_gate=True)
    assert [layer.attention for layer in model.layers] == [linear, linear, linear, full] * 12
    assert model.attention == full
    assert model.linear_layers == (linear,) * 36
    experts = ExpertMlp(512, 10, 512, shared_intermediate_size=512, has_shared_gate=True)
    assert {layer.mlp for layer in model.layers} == {experts}
    # Published as 3B active; embedding and head are counted, too, of 0.31B each.
    assert num_active_parameters(model) / 1e9 == pytest.approx(3.87, abs=0.01)


def test_the_state_of_linear_attention_is_its_matrices_and_the_last_inputs_of_its_convolution() -> None:
    (one, *_) = read_model_shape(QWEN3_NEXT).linear_layers
    assert one.recurrent_state_values == 32 * 128 * 128
    assert one.conv_size == 16 * 128 + 16 * 128 + 32 * 128
    assert one.state_values == 32 * 128 * 128 + 8192 * (4 - 1)


def test_the_tensors_of_linear_attention_are_called_and_shaped_as_in_the_checkpoint() -> None:
    """Compare with the state_dict of transformers 5.5.4 for this config; its experts are joined, the files' are not."""
    weights = weights_of(read_model_shape(QWEN3_NEXT))
    shapes = {weight.name.removeprefix("model.layers."): weight.shape for weight in weights if weight.expert is None}
    of_linear = {name.split(".", 2)[2]: shape for name, shape in shapes.items() if name.startswith("0.linear_attn")}
    assert of_linear == {
        "in_proj_qkvz.weight": (12288, 2048),
        "in_proj_ba.weight": (64, 2048),
        "conv1d.weight": (8192, 1, 4),
        "A_log": (32,),
        "dt_bias": (32,),
        "norm.weight": (128,),
        "out_proj.weight": (2048, 4096),
    }
    assert shapes["3.self_attn.q_proj.weight"] == (8192, 2048)  # of each head the query and the gate
    assert shapes["3.self_attn.o_proj.weight"] == (2048, 4096)
    assert len(weights) == 74_391  # as the index of Qwen3-Coder-Next's files says, which has this config


def test_what_is_in_few_bits_of_qwen3_next_is_what_its_publisher_has_in_fp8() -> None:
    """Count a scale for each 128 x 128 weights: Qwen3-Coder-Next-FP8 has 79,679,212,800 numbers, these among them."""
    plan = FormatPlan(WEIGHT_FORMATS["fp8_block"])
    quantized = [weight for weight in weights_of(read_model_shape(QWEN3_NEXT)) if plan.of(weight).is_quantized]
    scales = (plan.num_bytes(quantized) - sum(weight.size for weight in quantized)) / 4
    assert scales == 79_679_212_800 - 79_674_391_296
    assert {weight.role for weight in quantized}.isdisjoint({Role.LINEAR_GATES, Role.CONV, Role.DECAY, Role.ROUTER})


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"full_attention_interval": 2}, "lflf"),
        ({"full_attention_interval": None}, "lllf"),
        ({"layer_types": ["full_attention", *["linear_attention"] * 3]}, "flll"),
        ({"full_attention_interval": 1}, "ffff"),
    ],
)
def test_qwen3_next_says_in_two_ways_which_layers_are_linear(change: dict[str, object], kinds: str) -> None:
    model = read_model_shape(QWEN3_NEXT | {"num_hidden_layers": 4} | change)
    found = ["l" if isinstance(layer.attention, LinearAttention) else "f" for layer in model.layers]
    assert "".join(found) == kinds


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"linear_num_key_heads": None}, "linear_num_key_heads is missing"),
        ({"linear_conv_kernel_dim": 0}, "linear_conv_kernel_dim must be a whole number, at least 1; got 0"),
        ({"linear_num_value_heads": 24}, r"linear_num_value_heads / linear_num_key_heads \(24 / 16\) is not a whole"),
        (
            {"layer_types": ["linear_attention"] * 48},
            "layer_types must be such that at least one of 48 layers has full",
        ),
        ({"full_attention_interval": 49}, "full_attention_interval must be such that .* has full attention; got '49'"),
        ({"layer_types": ["sliding_attention"] * 48}, "layer_types must be 48 of full_attention or linear_attention"),
    ],
)
def test_a_qwen3_next_that_does_not_say_it_right_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_model_shape(QWEN3_NEXT | change)


def test_a_model_that_sees_is_planned_but_not_built() -> None:
    with pytest.raises(SpecError, match=r"Mistral3ForConditionalGeneration has a vision tower, which nothing here"):
        read_whole_model_shape(known_models()["mistral-small-3.1-24b"].config)
    assert not read_whole_model_shape(LLAMA).has_vision


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("T4", "'T4' is SM 75, and TensorRT-LLM needs SM 80 .*0.14; there are a100-40"),
        ("v100", "is SM 70, and TensorRT-LLM needs SM 80"),
        ("MI300X", "'MI300X' is AMD's, and TensorRT-LLM runs on NVIDIA's GPUs alone; there are"),
    ],
)
def test_a_gpu_that_tensorrt_llm_does_not_run_on_is_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        gpu_named(name)


def test_nvlink_joins_its_domain_and_pcie_the_cards_beyond_a_bridge() -> None:
    assert [gpu_named("a6000").is_joined_by_nvlink(number) for number in (2, 4)] == [True, False]
    assert gpu_named("gh200-144").is_joined_by_nvlink(2)
    assert gpu_named("gh200-96").is_joined_by_nvlink(4)
    assert not gpu_named("gh200-96").is_joined_by_nvlink(8)
    assert not gpu_named("l40s").is_joined_by_nvlink(2)
    for gpu in gpus().values():
        assert not gpu.is_bridged or (gpu.nvlink_gbs > gpu.pcie_gbs * 0.8 and gpu.nvlink_domain > 1)


def test_names_of_gpus_are_there_once() -> None:
    names = [name for gpu in gpus().values() for name in {gpu.name, gpu.title.lower(), *gpu.driver_names}]
    assert len(names) == len(set(names))


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
