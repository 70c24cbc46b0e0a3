# SPDX-License-Identifier: Apache-2.0
"""Readers of the `config.json` of families with layers of experts.

Sources: the `config.json` and modelling code that each family publishes.
"""

from build_engines.checkpoint.config_parts import (
    Reader,
    grouped_attention,
    model_of,
    qwen3_attention,
    qwen_windows,
    windows_of,
)
from build_engines.checkpoint.config_values import ConfigValues
from build_engines.checkpoint.model_shape import (
    Attention,
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    LinearAttention,
    Mlp,
    ModelShape,
)


def _qwen2_moe(config: ConfigValues, architecture: str) -> ModelShape:
    shared = config.count("shared_expert_intermediate_size")
    attention = grouped_attention(config, has_qkv_bias=config.flag("qkv_bias", default=True))
    return _qwen_moe(config, architecture, attention, shared_size=shared)


def _qwen3_moe(config: ConfigValues, architecture: str) -> ModelShape:
    return _qwen_moe(config, architecture, qwen3_attention(config), shared_size=0)


def _qwen3_next(config: ConfigValues, architecture: str) -> ModelShape:
    full = qwen3_attention(config, has_output_gate=True)
    linear = LinearAttention(
        num_key_heads=config.count("linear_num_key_heads"),
        num_value_heads=config.count("linear_num_value_heads"),
        key_head_dim=config.count("linear_key_head_dim"),
        value_head_dim=config.count("linear_value_head_dim"),
        conv_kernel_size=config.count("linear_conv_kernel_dim"),
    )
    config.divide(linear.num_value_heads, linear.num_key_heads, "linear_num_value_heads / linear_num_key_heads")
    num_layers = config.count("num_hidden_layers")
    mlps = _qwen_mlps(config, num_layers, shared_size=config.count("shared_expert_intermediate_size"))
    are_linear = _qwen3_next_linear(config, num_layers)
    layers = [LayerShape(linear if is_linear else full, mlp) for is_linear, mlp in zip(are_linear, mlps, strict=True)]
    return model_of(config, architecture, layers)


def _qwen3_next_linear(config: ConfigValues, num_layers: int) -> list[bool]:
    """Return for each layer if its attention is linear: by `layer_types`, else all but every fourth."""
    kinds = config.layer_types(num_layers, "full_attention", "linear_attention")
    if kinds is not None:
        are_linear, name, value = (
            [kind == "linear_attention" for kind in kinds],
            "layer_types",
            "linear_attention alone",
        )
    else:
        period = config.optional_count("full_attention_interval") or 4
        are_linear = [(layer + 1) % period != 0 for layer in range(num_layers)]
        name, value = "full_attention_interval", str(period)
    if all(are_linear):
        raise config.wrong(name, value, f"such that at least one of {num_layers} layers has full attention")
    return are_linear


def _qwen_moe(config: ConfigValues, architecture: str, attention: GroupedAttention, *, shared_size: int) -> ModelShape:
    windows = qwen_windows(config)
    mlps = _qwen_mlps(config, len(windows), shared_size=shared_size)
    layers = [LayerShape(attention, mlp, window) for mlp, window in zip(mlps, windows, strict=True)]
    return model_of(config, architecture, layers)


def _qwen_mlps(config: ConfigValues, num_layers: int, *, shared_size: int) -> list[Mlp]:
    """Return the feed-forward network of each layer: experts, but where the config says that it is dense."""
    experts = ExpertMlp(
        num_experts=config.count("num_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=shared_size,
        has_shared_gate=shared_size > 0,
    )
    step = config.optional_count("decoder_sparse_step") or 1
    dense = config.whole_numbers("mlp_only_layers") or []
    return [
        experts if index not in dense and (index + 1) % step == 0 else DenseMlp(config.count("intermediate_size"))
        for index in range(num_layers)
    ]


def _mixtral(config: ConfigValues, architecture: str) -> ModelShape:
    experts = ExpertMlp(
        num_experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
    )
    attention = grouped_attention(config)
    windows = windows_of(config, lambda _: True)
    return model_of(config, architecture, [LayerShape(attention, experts, window) for window in windows])


def _gpt_oss(config: ConfigValues, architecture: str) -> ModelShape:
    attention = grouped_attention(config, has_qkv_bias=True, has_output_bias=True, has_sinks=True)
    experts = ExpertMlp(
        num_experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok", "experts_per_token"),
        intermediate_size=config.count("intermediate_size"),
        has_router_bias=True,
        has_bias=True,
    )
    windows = windows_of(config, lambda layer: layer % 2 == 0)
    return model_of(config, architecture, [LayerShape(attention, experts, window) for window in windows])


def _deepseek(config: ConfigValues, architecture: str) -> ModelShape:
    attention = LatentAttention(
        num_heads=config.count("num_attention_heads"),
        q_lora_rank=config.optional_count("q_lora_rank"),
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
    )
    # The bias balances the experts' load.
    has_router_bias = config.text("topk_method") == "noaux_tc"
    return _first_dense(config, architecture, attention, has_router_bias=has_router_bias)


def _glm4_moe(config: ConfigValues, architecture: str) -> ModelShape:
    attention = grouped_attention(
        config,
        has_qkv_bias=config.flag("attention_bias", default=False),  # its output has none either way
        has_qk_norm=config.flag("use_qk_norm", default=False),
    )
    return _first_dense(config, architecture, attention, has_router_bias=True)


def _first_dense(config: ConfigValues, architecture: str, attention: Attention, *, has_router_bias: bool) -> ModelShape:
    """Return a model of which the first layers are dense and all others have routed and shared experts."""
    expert_size = config.count("moe_intermediate_size")
    experts = ExpertMlp(
        num_experts=config.count("n_routed_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=expert_size,
        shared_intermediate_size=expert_size * (config.optional_count("n_shared_experts") or 0),
        has_router_bias=has_router_bias,
    )
    num_dense = config.optional_count("first_k_dense_replace") or 0
    dense = DenseMlp(config.count("intermediate_size"))
    layers = [
        LayerShape(attention, dense if index < num_dense else experts)
        for index in range(config.count("num_hidden_layers"))
    ]
    return model_of(config, architecture, layers)


def _llama4(config: ConfigValues, architecture: str) -> ModelShape:
    has_bias = config.flag("attention_bias", default=False)
    attention = grouped_attention(config, has_qkv_bias=has_bias, has_output_bias=has_bias)  # its norms have no weights
    size = config.count("intermediate_size")
    experts = ExpertMlp(
        num_experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=size,
        shared_intermediate_size=size,
    )
    num_layers = config.count("num_hidden_layers")
    step = config.optional_count("interleave_moe_layer_step") or 1
    sparse = config.whole_numbers("moe_layers")
    sparse = list(range(step - 1, num_layers, step)) if sparse is None else sparse
    dense = None if len(set(sparse)) == num_layers else DenseMlp(config.count("intermediate_size_mlp"))
    layers = [
        LayerShape(attention, experts if dense is None or index in sparse else dense, window)
        for index, window in enumerate(_llama4_chunks(config, num_layers))
    ]
    return model_of(config, architecture, layers)


def _llama4_chunks(config: ConfigValues, num_layers: int) -> list[int | None]:
    """Return each layer's chunk: a token looks back to the start of its chunk, so a window that it never exceeds.

    Layers without rotary positions look back at everything.
    """
    chunk = config.optional_count("attention_chunk_size")
    kinds = config.layer_types(num_layers, "full_attention", "chunked_attention")
    if kinds is not None:
        return [chunk if kind == "chunked_attention" else None for kind in kinds]
    period = config.optional_count("no_rope_layer_interval") or 4
    # A 1 means that the layer does have rotary positions, whatever the name.
    has_rope = config.whole_numbers("no_rope_layers") or [int((n + 1) % period != 0) for n in range(num_layers)]
    if len(has_rope) < num_layers:
        raise config.wrong("no_rope_layers", has_rope, f"{num_layers} of 0 or 1")
    return [chunk if has_rope[layer] else None for layer in range(num_layers)]


MIXTURE_READERS: dict[str, Reader] = {
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "Glm4MoeForCausalLM": _glm4_moe,
    "GptOssForCausalLM": _gpt_oss,
    "Llama4ForCausalLM": _llama4,
    "MixtralForCausalLM": _mixtral,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3MoeForCausalLM": _qwen3_moe,
    "Qwen3NextForCausalLM": _qwen3_next,
}
