# SPDX-License-Identifier: Apache-2.0
"""Readers of a Hugging Face `config.json`, which make a `ModelShape` of it or name what is unknown or missing.

There is one function for each family of architectures; a new family is a function, a row in `_READERS`, and its names
of tensors in `build_engines.checkpoint.weight_table`. Sources: the `config.json` and modelling code that each family
publishes.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from build_engines.checkpoint.config_values import ConfigValues, load_config
from build_engines.checkpoint.model_shape import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    ModelShape,
)
from trireme.base.errors import SpecError


def load_model_shape(checkpoint: Path) -> ModelShape:
    """Return the shape of the model in a checkpoint folder, or of a `config.json` by itself.

    Raises:
        SpecError: no such file, not JSON, an unknown architecture, a missing or wrong value; the message names each.
    """
    return read_model_shape(load_config(checkpoint), source=str(checkpoint))


def read_model_shape(config: Mapping[str, object], *, source: str = "config.json") -> ModelShape:
    """Return the shape that a parsed `config.json` describes.

    Raises:
        SpecError: an unknown architecture, a missing or wrong value; the message names each.
    """
    architectures = config.get("architectures")
    name = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(name, str):
        raise SpecError(
            f"{source}: architectures is missing; a checkpoint for serving names one, such as LlamaForCausalLM",
            file=source,
            field="architectures",
        )
    if name not in _READERS:
        raise SpecError(
            f"{source}: architecture {name!r} is not known here; there are {', '.join(sorted(_READERS))}",
            file=source,
            field="architectures",
            value=name,
        )
    return _READERS[name](ConfigValues(config, source), name)


def _grouped_attention(config: ConfigValues, **facts: bool) -> GroupedAttention:
    num_heads = config.count("num_attention_heads")
    head_dim = config.count_if_given("head_dim")
    if head_dim is None:
        head_dim = config.divide(config.count("hidden_size"), num_heads, "hidden_size / num_attention_heads")
    num_kv_heads = config.optional_count("num_key_value_heads") or num_heads
    config.divide(num_heads, num_kv_heads, "num_attention_heads / num_key_value_heads")
    return GroupedAttention(num_heads, num_kv_heads, head_dim, **facts)


def _model(
    config: ConfigValues,
    architecture: str,
    layers: list[LayerShape],
    *,
    is_tied: bool = False,
    norms_per_layer: int = 2,
    **facts: bool,
) -> ModelShape:
    return ModelShape(
        architecture=architecture,
        vocab_size=config.count("vocab_size"),
        hidden_size=config.count("hidden_size", "n_embd"),
        layers=tuple(layers),
        is_tied=config.flag("tie_word_embeddings", default=is_tied),
        max_position_embeddings=config.optional_count("max_position_embeddings", "n_positions") or 2048,
        dtype=config.text("torch_dtype") or config.text("dtype") or "bfloat16",
        norms_per_layer=norms_per_layer,
        **facts,
    )


def _dense_layers(config: ConfigValues, attention: GroupedAttention, windows: list[int | None]) -> list[LayerShape]:
    mlp = DenseMlp(config.count("intermediate_size"), has_bias=config.flag("mlp_bias", default=False))
    return [LayerShape(attention, mlp, window) for window in windows]


def _windows(config: ConfigValues, is_sliding: Callable[[int], bool]) -> list[int | None]:
    """Return each layer's window: by `layer_types` where the config has it, else by the family's rule."""
    num_layers = config.count("num_hidden_layers")
    window = config.optional_count("sliding_window")
    kinds = config.layer_types(num_layers)
    if kinds is not None:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    return [window if is_sliding(layer) else None for layer in range(num_layers)]


def _llama(config: ConfigValues, architecture: str) -> ModelShape:
    has_bias = config.flag("attention_bias", default=False)
    attention = _grouped_attention(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    return _model(config, architecture, _dense_layers(config, attention, _windows(config, lambda _: False)))


def _mistral(config: ConfigValues, architecture: str) -> ModelShape:
    layers = _dense_layers(config, _grouped_attention(config), _windows(config, lambda _: True))
    return _model(config, architecture, layers)


def _phi3(config: ConfigValues, architecture: str) -> ModelShape:
    return _mistral(config, architecture)


def _qwen_windows(config: ConfigValues) -> list[int | None]:
    first = config.optional_count("max_window_layers") or 0
    is_used = config.flag("use_sliding_window", default=False)
    windows = _windows(config, lambda layer: layer >= first)
    return windows if is_used else [None] * len(windows)


def _qwen2(config: ConfigValues, architecture: str) -> ModelShape:
    attention = _grouped_attention(config, has_qkv_bias=True)
    return _model(config, architecture, _dense_layers(config, attention, _qwen_windows(config)))


def _qwen3(config: ConfigValues, architecture: str) -> ModelShape:
    attention = _qwen3_attention(config)
    return _model(config, architecture, _dense_layers(config, attention, _qwen_windows(config)))


def _qwen3_attention(config: ConfigValues) -> GroupedAttention:
    has_bias = config.flag("attention_bias", default=False)
    return _grouped_attention(config, has_qkv_bias=has_bias, has_output_bias=has_bias, has_qk_norm=True)


def _qwen2_moe(config: ConfigValues, architecture: str) -> ModelShape:
    shared = config.count("shared_expert_intermediate_size")
    attention = _grouped_attention(config, has_qkv_bias=config.flag("qkv_bias", default=True))
    return _qwen_moe(config, architecture, attention, shared_size=shared)


def _qwen3_moe(config: ConfigValues, architecture: str) -> ModelShape:
    return _qwen_moe(config, architecture, _qwen3_attention(config), shared_size=0)


def _qwen_moe(config: ConfigValues, architecture: str, attention: GroupedAttention, *, shared_size: int) -> ModelShape:
    experts = ExpertMlp(
        num_experts=config.count("num_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("moe_intermediate_size"),
        shared_intermediate_size=shared_size,
        has_shared_gate=shared_size > 0,
    )
    step = config.optional_count("decoder_sparse_step") or 1
    layers = []
    for index, window in enumerate(_qwen_windows(config)):
        is_sparse = (index + 1) % step == 0
        layers.append(
            LayerShape(attention, experts if is_sparse else DenseMlp(config.count("intermediate_size")), window)
        )
    return _model(config, architecture, layers)


def _mixtral(config: ConfigValues, architecture: str) -> ModelShape:
    experts = ExpertMlp(
        num_experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
    )
    attention = _grouped_attention(config)
    windows = _windows(config, lambda _: True)
    return _model(config, architecture, [LayerShape(attention, experts, window) for window in windows])


def _gpt_oss(config: ConfigValues, architecture: str) -> ModelShape:
    attention = _grouped_attention(config, has_qkv_bias=True, has_output_bias=True, has_sinks=True)
    experts = ExpertMlp(
        num_experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok", "experts_per_token"),
        intermediate_size=config.count("intermediate_size"),
        has_router_bias=True,
        has_bias=True,
    )
    windows = _windows(config, lambda layer: layer % 2 == 0)
    return _model(config, architecture, [LayerShape(attention, experts, window) for window in windows])


def _deepseek(config: ConfigValues, architecture: str) -> ModelShape:
    attention = LatentAttention(
        num_heads=config.count("num_attention_heads"),
        q_lora_rank=config.optional_count("q_lora_rank"),
        kv_lora_rank=config.count("kv_lora_rank"),
        qk_nope_head_dim=config.count("qk_nope_head_dim"),
        qk_rope_head_dim=config.count("qk_rope_head_dim"),
        v_head_dim=config.count("v_head_dim"),
    )
    expert_size = config.count("moe_intermediate_size")
    experts = ExpertMlp(
        num_experts=config.count("n_routed_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=expert_size,
        shared_intermediate_size=expert_size * (config.optional_count("n_shared_experts") or 0),
        has_router_bias=config.text("topk_method") == "noaux_tc",  # the bias that balances the experts' load
    )
    num_dense = config.optional_count("first_k_dense_replace") or 0
    dense = DenseMlp(config.count("intermediate_size"))
    layers = [
        LayerShape(attention, dense if index < num_dense else experts)
        for index in range(config.count("num_hidden_layers"))
    ]
    return _model(config, architecture, layers)


def _gemma(config: ConfigValues, architecture: str) -> ModelShape:
    layers = _dense_layers(config, _grouped_attention(config), _windows(config, lambda _: False))
    return _model(config, architecture, layers, is_tied=True)


def _gemma2(config: ConfigValues, architecture: str) -> ModelShape:
    layers = _dense_layers(config, _grouped_attention(config), _windows(config, lambda layer: layer % 2 == 0))
    return _model(config, architecture, layers, is_tied=True, norms_per_layer=4)


def _gemma3(config: ConfigValues, architecture: str) -> ModelShape:
    period = config.optional_count("sliding_window_pattern") or 6
    windows = _windows(config, lambda layer: (layer + 1) % period != 0)
    layers = _dense_layers(config, _grouped_attention(config, has_qk_norm=True), windows)
    return _model(config, architecture, layers, is_tied=True, norms_per_layer=4)


def _falcon(config: ConfigValues, architecture: str) -> ModelShape:
    num_heads, hidden_size = config.count("num_attention_heads", "n_head"), config.count("hidden_size")
    is_new = config.flag("new_decoder_architecture", default=False)
    is_mqa = config.flag("multi_query", default=True)
    num_kv_heads = (config.optional_count("num_kv_heads", "n_head_kv") or num_heads) if is_new or not is_mqa else 1
    has_bias = config.flag("bias", default=False)
    attention = GroupedAttention(
        num_heads,
        num_kv_heads,
        config.divide(hidden_size, num_heads, "hidden_size / num_attention_heads"),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
    )
    mlp = DenseMlp(config.optional_count("ffn_hidden_size") or 4 * hidden_size, is_gated=False, has_bias=has_bias)
    num_layers = config.count("num_hidden_layers", "n_layer")
    is_parallel = config.flag("parallel_attn", default=True)
    num_parallel_norms = config.optional_count("num_ln_in_parallel_attn") or (2 if is_new else 1)
    return _model(
        config,
        architecture,
        [LayerShape(attention, mlp)] * num_layers,
        is_tied=True,
        norms_per_layer=num_parallel_norms if is_parallel else 2,
        has_norm_bias=True,
        is_parallel_block=is_parallel,
    )


def _gptj(config: ConfigValues, architecture: str) -> ModelShape:
    num_heads, hidden_size = config.count("n_head"), config.count("n_embd")
    head_dim = config.divide(hidden_size, num_heads, "n_embd / n_head")
    mlp = DenseMlp(config.optional_count("n_inner") or 4 * hidden_size, is_gated=False, has_bias=True)
    layer = LayerShape(GroupedAttention(num_heads, num_heads, head_dim), mlp)
    return _model(
        config,
        architecture,
        [layer] * config.count("n_layer"),
        norms_per_layer=1,
        has_norm_bias=True,
        has_head_bias=True,
        is_parallel_block=True,
    )


_READERS: dict[str, Callable[[ConfigValues, str], ModelShape]] = {
    "DeepseekV2ForCausalLM": _deepseek,
    "DeepseekV3ForCausalLM": _deepseek,
    "FalconForCausalLM": _falcon,
    "GPTJForCausalLM": _gptj,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "GemmaForCausalLM": _gemma,
    "GptOssForCausalLM": _gpt_oss,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "MixtralForCausalLM": _mixtral,
    "Phi3ForCausalLM": _phi3,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen2MoeForCausalLM": _qwen2_moe,
    "Qwen3ForCausalLM": _qwen3,
    "Qwen3MoeForCausalLM": _qwen3_moe,
}
