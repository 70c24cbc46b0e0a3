# SPDX-License-Identifier: Apache-2.0
"""Readers of the `config.json` of families whose every layer has one feed-forward network.

Sources: the `config.json` and modelling code that each family publishes.
"""

from build_engines.checkpoint.config_parts import (
    Reader,
    dense_layers,
    grouped_attention,
    model_of,
    qwen3_attention,
    qwen_windows,
    windows_of,
)
from build_engines.checkpoint.config_values import ConfigValues
from build_engines.checkpoint.model_shape import DenseMlp, GroupedAttention, LayerShape, ModelShape


def _llama(config: ConfigValues, architecture: str) -> ModelShape:
    has_bias = config.flag("attention_bias", default=False)
    attention = grouped_attention(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    return model_of(config, architecture, dense_layers(config, attention, windows_of(config, lambda _: False)))


def _mistral(config: ConfigValues, architecture: str) -> ModelShape:
    layers = dense_layers(config, grouped_attention(config), windows_of(config, lambda _: True))
    return model_of(config, architecture, layers)


def _qwen2(config: ConfigValues, architecture: str) -> ModelShape:
    attention = grouped_attention(config, has_qkv_bias=True)
    return model_of(config, architecture, dense_layers(config, attention, qwen_windows(config)))


def _qwen3(config: ConfigValues, architecture: str) -> ModelShape:
    attention = qwen3_attention(config)
    return model_of(config, architecture, dense_layers(config, attention, qwen_windows(config)))


def _gemma(config: ConfigValues, architecture: str) -> ModelShape:
    layers = dense_layers(config, grouped_attention(config), windows_of(config, lambda _: False))
    return model_of(config, architecture, layers, is_tied=True)


def _gemma2(config: ConfigValues, architecture: str) -> ModelShape:
    layers = dense_layers(config, grouped_attention(config), windows_of(config, lambda layer: layer % 2 == 0))
    return model_of(config, architecture, layers, is_tied=True, norms_per_layer=4)


def _gemma3(config: ConfigValues, architecture: str) -> ModelShape:
    period = config.optional_count("sliding_window_pattern") or 6
    windows = windows_of(config, lambda layer: (layer + 1) % period != 0)
    layers = dense_layers(config, grouped_attention(config, has_qk_norm=True), windows)
    return model_of(config, architecture, layers, is_tied=True, norms_per_layer=4)


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
    return model_of(
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
    return model_of(
        config,
        architecture,
        [layer] * config.count("n_layer"),
        norms_per_layer=1,
        has_norm_bias=True,
        has_head_bias=True,
        is_parallel_block=True,
    )


DENSE_READERS: dict[str, Reader] = {
    "FalconForCausalLM": _falcon,
    "GPTJForCausalLM": _gptj,
    "Gemma2ForCausalLM": _gemma2,
    "Gemma3ForCausalLM": _gemma3,
    "GemmaForCausalLM": _gemma,
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Phi3ForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
}
