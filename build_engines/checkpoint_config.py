# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face `config.json`, read into a `ModelShape`; what is unknown or missing is refused by name.

One function for each family of architectures; a new one is a function and a row in `_READERS`, and its names of tensors
in `build_engines.weight_table`. Sources: the `config.json` and modelling code that each family publishes.
"""

import json
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from build_engines.model_shape import (
    DenseMlp,
    ExpertMlp,
    GroupedAttention,
    LatentAttention,
    LayerShape,
    ModelShape,
)
from ensemble_configs.errors import SpecError


def load_model_shape(checkpoint: Path) -> ModelShape:
    """The shape of the model in a checkpoint folder, or of a `config.json` by itself.

    Raises:
        SpecError: no such file, not JSON, an unknown architecture, a missing or wrong value; it names each.
    """
    return read_model_shape(load_config(checkpoint), source=str(checkpoint))


def load_config(checkpoint: Path) -> dict[str, object]:
    """The `config.json` of a checkpoint folder, or that file itself.

    Raises:
        SpecError: it is no plain file of at most 16 MiB, cannot be read or does not hold an object.
    """
    path = checkpoint / "config.json" if checkpoint.is_dir() else checkpoint
    try:
        config = json.loads(_read_plain_file(path))
    except OSError as exc:
        raise SpecError(
            f"cannot read {path}: {exc.strerror}; name a checkpoint's folder or its config.json", file=path
        ) from exc
    except (ValueError, RecursionError) as exc:
        raise SpecError(f"{path} is not JSON: {exc}", file=path) from exc
    if not isinstance(config, dict):
        raise SpecError(f"{path} holds no object of keys and values", file=path)
    return config


def _read_plain_file(path: Path) -> bytes:
    """Refuses a pipe, which would be waited for, and a device, which may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise SpecError(f"{path} is not a plain file; name a checkpoint's folder or its config.json", file=path)
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise SpecError(
            f"{path} is larger than {_MOST_BYTES // 2**20} MiB, which no config.json is; name a checkpoint's folder or "
            "its config.json",
            file=path,
        )
    return content


def read_model_shape(config: Mapping[str, object], *, source: str = "config.json") -> ModelShape:
    """The shape that a parsed `config.json` describes.

    Raises:
        SpecError: as `load_model_shape`.
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
    return _READERS[name](_Config(config, source), name)


_MOST_BYTES = 16 * 2**20  # published ones have some KiB

# Of these a list is made here, and a config may come from anywhere.
_LISTED = frozenset({"num_hidden_layers", "n_layer", "num_experts", "num_local_experts", "n_routed_experts"})
_MOST_LISTED = 10_000
_MOST = 10**12  # of all others: far above any model's, and products of them are still within a float


class _Config:
    """Values of a `config.json` by name, each of the type that it should have."""

    def __init__(self, values: Mapping[str, object], source: str) -> None:
        self._values = values
        self._source = source

    def count(self, *names: str) -> int:
        """A whole number above 0 that must be there, by one of its names."""
        value = self.count_if_given(*names)
        if value is None:
            raise SpecError(f"{self._source}: {names[0]} is missing", file=self._source, field=names[0])
        return value

    def count_if_given(self, *names: str) -> int | None:
        """A whole number above 0, or None where no name is there or the value is null."""
        value = self.optional_count(*names)
        for name in names:
            if value is None and self._values.get(name) is not None:
                raise self._wrong(name, 0, "a whole number, at least 1")
        return value

    def optional_count(self, *names: str) -> int | None:
        """The same, or None where no name is there or the value is null or 0."""
        for name in names:
            value = self._values.get(name)
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise self._wrong(name, value, "a whole number, at least 0")
            most = _MOST_LISTED if name in _LISTED else _MOST
            if value > most:
                raise self._wrong(name, value, f"at most {most:,}")
            return value or None
        return None

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str) -> str | None:
        """A string, if there is one."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, value, "a string")
        return value

    def layer_types(self, num_layers: int) -> list[str] | None:
        """For each layer `full_attention` or `sliding_attention`, where the config says so."""
        value = self._values.get("layer_types")
        if value is None:
            return None
        known = ("full_attention", "sliding_attention")
        if not isinstance(value, list) or len(value) != num_layers or any(kind not in known for kind in value):
            raise self._wrong("layer_types", value, f"{num_layers} of {' or '.join(known)}")
        return value

    def divide(self, numerator: int, denominator: int, names: str) -> int:
        """A quotient that must be whole."""
        if numerator % denominator:
            raise SpecError(
                f"{self._source}: {names} ({numerator} / {denominator}) is not a whole number", file=self._source
            )
        return numerator // denominator

    def _wrong(self, name: str, value: object, allowed: str) -> SpecError:
        return SpecError(
            f"{self._source}: {name} must be {allowed}; got {value!r}", file=self._source, field=name, value=value
        )


def _grouped_attention(config: _Config, **facts: bool) -> GroupedAttention:
    num_heads = config.count("num_attention_heads")
    head_dim = config.count_if_given("head_dim")
    if head_dim is None:
        head_dim = config.divide(config.count("hidden_size"), num_heads, "hidden_size / num_attention_heads")
    num_kv_heads = config.optional_count("num_key_value_heads") or num_heads
    config.divide(num_heads, num_kv_heads, "num_attention_heads / num_key_value_heads")
    return GroupedAttention(num_heads, num_kv_heads, head_dim, **facts)


def _model(
    config: _Config,
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


def _dense_layers(config: _Config, attention: GroupedAttention, windows: list[int | None]) -> list[LayerShape]:
    mlp = DenseMlp(config.count("intermediate_size"), has_bias=config.flag("mlp_bias", default=False))
    return [LayerShape(attention, mlp, window) for window in windows]


def _windows(config: _Config, is_sliding: Callable[[int], bool]) -> list[int | None]:
    """Each layer's window: by `layer_types` where the config has it, else by the family's rule."""
    num_layers = config.count("num_hidden_layers")
    window = config.optional_count("sliding_window")
    kinds = config.layer_types(num_layers)
    if kinds is not None:
        return [window if kind == "sliding_attention" else None for kind in kinds]
    return [window if is_sliding(layer) else None for layer in range(num_layers)]


def _llama(config: _Config, architecture: str) -> ModelShape:
    has_bias = config.flag("attention_bias", default=False)
    attention = _grouped_attention(config, has_qkv_bias=has_bias, has_output_bias=has_bias)
    return _model(config, architecture, _dense_layers(config, attention, _windows(config, lambda _: False)))


def _mistral(config: _Config, architecture: str) -> ModelShape:
    layers = _dense_layers(config, _grouped_attention(config), _windows(config, lambda _: True))
    return _model(config, architecture, layers)


def _phi3(config: _Config, architecture: str) -> ModelShape:
    return _mistral(config, architecture)


def _qwen_windows(config: _Config) -> list[int | None]:
    first = config.optional_count("max_window_layers") or 0
    is_used = config.flag("use_sliding_window", default=False)
    windows = _windows(config, lambda layer: layer >= first)
    return windows if is_used else [None] * len(windows)


def _qwen2(config: _Config, architecture: str) -> ModelShape:
    attention = _grouped_attention(config, has_qkv_bias=True)
    return _model(config, architecture, _dense_layers(config, attention, _qwen_windows(config)))


def _qwen3(config: _Config, architecture: str) -> ModelShape:
    attention = _qwen3_attention(config)
    return _model(config, architecture, _dense_layers(config, attention, _qwen_windows(config)))


def _qwen3_attention(config: _Config) -> GroupedAttention:
    has_bias = config.flag("attention_bias", default=False)
    return _grouped_attention(config, has_qkv_bias=has_bias, has_output_bias=has_bias, has_qk_norm=True)


def _qwen2_moe(config: _Config, architecture: str) -> ModelShape:
    shared = config.count("shared_expert_intermediate_size")
    attention = _grouped_attention(config, has_qkv_bias=config.flag("qkv_bias", default=True))
    return _qwen_moe(config, architecture, attention, shared_size=shared)


def _qwen3_moe(config: _Config, architecture: str) -> ModelShape:
    return _qwen_moe(config, architecture, _qwen3_attention(config), shared_size=0)


def _qwen_moe(config: _Config, architecture: str, attention: GroupedAttention, *, shared_size: int) -> ModelShape:
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


def _mixtral(config: _Config, architecture: str) -> ModelShape:
    experts = ExpertMlp(
        num_experts=config.count("num_local_experts"),
        experts_per_token=config.count("num_experts_per_tok"),
        intermediate_size=config.count("intermediate_size"),
    )
    attention = _grouped_attention(config)
    windows = _windows(config, lambda _: True)
    return _model(config, architecture, [LayerShape(attention, experts, window) for window in windows])


def _gpt_oss(config: _Config, architecture: str) -> ModelShape:
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


def _deepseek(config: _Config, architecture: str) -> ModelShape:
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


def _gemma(config: _Config, architecture: str) -> ModelShape:
    layers = _dense_layers(config, _grouped_attention(config), _windows(config, lambda _: False))
    return _model(config, architecture, layers, is_tied=True)


def _gemma2(config: _Config, architecture: str) -> ModelShape:
    layers = _dense_layers(config, _grouped_attention(config), _windows(config, lambda layer: layer % 2 == 0))
    return _model(config, architecture, layers, is_tied=True, norms_per_layer=4)


def _gemma3(config: _Config, architecture: str) -> ModelShape:
    period = config.optional_count("sliding_window_pattern") or 6
    windows = _windows(config, lambda layer: (layer + 1) % period != 0)
    layers = _dense_layers(config, _grouped_attention(config, has_qk_norm=True), windows)
    return _model(config, architecture, layers, is_tied=True, norms_per_layer=4)


def _falcon(config: _Config, architecture: str) -> ModelShape:
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


def _gptj(config: _Config, architecture: str) -> ModelShape:
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


_READERS: dict[str, Callable[[_Config, str], ModelShape]] = {
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
