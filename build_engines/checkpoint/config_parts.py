# SPDX-License-Identifier: Apache-2.0
"""Parts of a `config.json` that several families of models have in common, read into parts of a `ModelShape`."""

from collections.abc import Callable

from build_engines.checkpoint.config_values import ConfigValues
from build_engines.checkpoint.model_shape import DenseMlp, GroupedAttention, LayerShape, ModelShape

Reader = Callable[[ConfigValues, str], ModelShape]


def grouped_attention(config: ConfigValues, **facts: bool) -> GroupedAttention:
    """Return the attention that the config's heads make; `facts` are fields of `GroupedAttention`."""
    num_heads = config.count("num_attention_heads")
    head_dim = config.count_if_given("head_dim")
    if head_dim is None:
        head_dim = config.divide(config.count("hidden_size"), num_heads, "hidden_size / num_attention_heads")
    num_kv_heads = config.optional_count("num_key_value_heads") or num_heads
    config.divide(num_heads, num_kv_heads, "num_attention_heads / num_key_value_heads")
    return GroupedAttention(num_heads, num_kv_heads, head_dim, **facts)


def model_of(
    config: ConfigValues,
    architecture: str,
    layers: list[LayerShape],
    *,
    is_tied: bool = False,
    norms_per_layer: int = 2,
    **facts: bool,
) -> ModelShape:
    """Return a model of these layers, with what every family's config says; `facts` are fields of `ModelShape`."""
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


def dense_layers(config: ConfigValues, attention: GroupedAttention, windows: list[int | None]) -> list[LayerShape]:
    """Return layers that are alike but for their windows, each with a dense network."""
    mlp = DenseMlp(config.count("intermediate_size"), has_bias=config.flag("mlp_bias", default=False))
    return [LayerShape(attention, mlp, window) for window in windows]


def windows_of(config: ConfigValues, is_sliding: Callable[[int], bool]) -> list[int | None]:
    """Return each layer's window: by `layer_types` where the config has it, else by the family's rule."""
    num_layers = config.count("num_hidden_layers")
    window = config.optional_count("sliding_window")
    kinds = config.layer_types(num_layers, "full_attention", "sliding_attention")
    if kinds is not None:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    return [window if is_sliding(layer) else None for layer in range(num_layers)]


def qwen_windows(config: ConfigValues) -> list[int | None]:
    """Return each layer's window by Qwen's rule, which has a flag and a first layer."""
    first = config.optional_count("max_window_layers") or 0
    is_used = config.flag("use_sliding_window", default=False)
    windows = windows_of(config, lambda layer: layer >= first)
    return windows if is_used else [None] * len(windows)


def qwen3_attention(config: ConfigValues, *, has_output_gate: bool = False) -> GroupedAttention:
    """Return the attention of Qwen3, with a norm for queries and for keys."""
    has_bias = config.flag("attention_bias", default=False)
    return grouped_attention(
        config,
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
        has_output_gate=has_output_gate,
    )
