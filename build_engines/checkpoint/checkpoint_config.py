# SPDX-License-Identifier: Apache-2.0
"""Readers of a Hugging Face `config.json`, which make a `ModelShape` of it or name what is unknown or missing.

A family is a function, in `dense_readers` or `mixture_readers`, and its names of tensors in `weight_table`. Of a model
that sees, its text part is read.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from build_engines.checkpoint.config_values import ConfigValues, load_config
from build_engines.checkpoint.dense_readers import DENSE_READERS
from build_engines.checkpoint.mixture_readers import MIXTURE_READERS
from build_engines.checkpoint.model_shape import ModelShape
from trireme.base.errors import SpecError

_READERS = DENSE_READERS | MIXTURE_READERS

# Of a model with a vision tower, the architecture of its text part.
_TEXT_PARTS = {
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "Mistral3ForConditionalGeneration": "MistralForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
}
# Published text_configs leave out what is the default of transformers' class for the text part.
_TEXT_DEFAULTS: dict[str, dict[str, object]] = {
    "Gemma3ForConditionalGeneration": {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip


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
    if name in _TEXT_PARTS:
        return _text_part(config, name, source)
    if name not in _READERS:
        raise SpecError(
            f"{source}: architecture {name!r} is not known here; there are "
            f"{', '.join(sorted([*_READERS, *_TEXT_PARTS]))}",
            file=source,
            field="architectures",
            value=name,
        )
    return _READERS[name](ConfigValues(config, source), name)


def read_whole_model_shape(config: Mapping[str, object], *, source: str = "config.json") -> ModelShape:
    """Return the shape of a model that can be built and served here: one without a vision tower.

    Raises:
        SpecError: as `read_model_shape`, and for a model with a vision tower.
    """
    shape = read_model_shape(config, source=source)
    if shape.has_vision:
        raise SpecError(
            f"{source}: {shape.architecture} has a vision tower, which nothing here builds or serves; its text part "
            f"can be planned (`trireme plan`), and is served from a checkpoint of "
            f"{_TEXT_PARTS[shape.architecture]}",
            file=source,
            field="architectures",
            value=shape.architecture,
        )
    return shape


def _text_part(config: Mapping[str, object], name: str, source: str) -> ModelShape:
    """Return the shape of the text part: of `text_config`, or of the whole config in Qwen2-VL's older form."""
    nested = config.get("text_config")
    if nested is None:
        values = ConfigValues(_TEXT_DEFAULTS.get(name, {}) | dict(config), source)
    elif isinstance(nested, Mapping):
        shared = {key: config[key] for key in ("tie_word_embeddings", "torch_dtype", "dtype") if key in config}
        values = ConfigValues(_TEXT_DEFAULTS.get(name, {}) | shared | dict(nested), source, "text_config.")
    else:
        raise SpecError(
            f"{source}: text_config must be an object of keys and values; got {nested!r}",
            file=source,
            field="text_config",
            value=nested,
        )
    return replace(_READERS[_TEXT_PARTS[name]](values, name), has_vision=True)
