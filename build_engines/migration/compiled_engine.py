# SPDX-License-Identifier: Apache-2.0
"""The `config.json` of a compiled engine: `version`, `pretrained_config` and `build_config`."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from ensemble_configs.releases.built_engine import speculation_name
from trireme.base.errors import SpecError

Json = dict[str, object]

_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class CompiledEngine:
    """An engine's config; sections that a version does not write are empty."""

    file: Path
    version: str
    pretrained: Json
    build: Json
    data: dict[str, JsonValue] = field(default_factory=dict)  # the whole file

    @property
    def release(self) -> tuple[int, int] | None:
        """Return the major and minor version, or None where the config does not tell."""
        match = _VERSION.match(self.version)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def plugins(self) -> Json:
        """Return `build_config.plugin_config`."""
        return _section(self.build, "plugin_config")

    @property
    def mapping(self) -> Json:
        """Return `pretrained_config.mapping`, which says how the ranks are made."""
        return _section(self.pretrained, "mapping")

    @property
    def quantization(self) -> Json:
        """Return `pretrained_config.quantization`."""
        return _section(self.pretrained, "quantization")

    @property
    def world_size(self) -> int:
        """Return the number of ranks, each on a GPU of its own."""
        return int_of(self.mapping, "world_size") or 1

    @property
    def kv_block_tokens(self) -> int:
        """Return the tokens in a block of the KV cache; upstream's default is 32 in 1.x."""
        return int_of(self.plugins, "tokens_per_block") or 32

    @property
    def speculation(self) -> str:
        """Return how the engine was built to speculate, in small letters; "none" without."""
        mode = self.build.get("speculative_decoding_mode", 1)
        return speculation_name(mode if isinstance(mode, int) else str(mode))

    @property
    def is_paged_context(self) -> bool | None:
        """Return True if attention over prompts reads the KV cache in pages.

        None: the config does not say.
        """
        paged = self.plugins.get("use_paged_context_fmha")
        return paged if isinstance(paged, bool) else None

    @property
    def has_lora(self) -> bool:
        """Return True if the engine was built with the LoRA plugin."""
        return self.plugins.get("lora_plugin") not in (None, False, "disable")

    @property
    def is_encoder_decoder(self) -> bool:
        """Return True if the engine is one half of a model of two."""
        architecture = str(self.pretrained.get("architecture", ""))
        return architecture in {"EncoderModel", "DecoderModel", "WhisperEncoder"} or bool(
            self.pretrained.get("cross_attention")
        )


def int_of(section: Json, key: str) -> int | None:
    """Return a number of a section, or None where there is none."""
    value = section.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _section(data: Json, key: str) -> Json:
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def load_compiled_engine(folder: Path) -> CompiledEngine | None:
    """Read an engine's config; None where the folder is not on this machine.

    Raises:
        SpecError: the folder is here and holds no engine's config.
    """
    if not folder.is_dir():
        return None
    file = folder / "config.json"
    try:
        data = json.loads(file.read_bytes())
    except OSError as exc:
        raise SpecError(
            f"cannot read {file}: {exc.strerror}; name the engine's folder with --engine-dir", file=file
        ) from exc
    except ValueError as exc:
        raise SpecError(f"{file} is not JSON: {exc}", file=file) from exc
    if not isinstance(data, dict) or not isinstance(data.get("pretrained_config"), dict):
        raise SpecError(
            f"{file} has no pretrained_config, so it is no compiled engine's; name the folder that trtllm-build wrote "
            "with --engine-dir",
            file=file,
        )
    version = str(data.get("version", ""))
    return CompiledEngine(file, version, data["pretrained_config"], _section(data, "build_config"), data)


_DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


def kv_bytes_per_token(engine: CompiledEngine) -> int:
    """Return the bytes of KV cache for a token on one rank.

    The formula is 2 * layers of the rank * max(1, KV heads / tp) * head size * bytes; with latent attention (MLA)
    layers * (rank of the latent + rotary size) * bytes, which tensor parallelism does not divide.

    Raises:
        SpecError: the engine's config does not tell the model's shape.
    """
    pretrained = engine.pretrained
    layers, heads = int_of(pretrained, "num_hidden_layers"), int_of(pretrained, "num_attention_heads")
    if not layers or not heads:
        raise SpecError(f"{engine.file} does not tell the model's layers and heads", file=engine.file)
    tp, pp = (int_of(engine.mapping, key) or 1 for key in ("tp_size", "pp_size"))
    size = 1 if engine.quantization.get("kv_cache_quant_algo") else _DTYPE_BYTES.get(str(pretrained.get("dtype")), 2)
    rank_layers = -(-layers // pp)
    if latent := int_of(pretrained, "kv_lora_rank"):
        return rank_layers * (latent + (int_of(pretrained, "qk_rope_head_dim") or 0)) * size
    head_size = int_of(pretrained, "head_size") or (int_of(pretrained, "hidden_size") or 0) // heads
    kv_heads = int_of(pretrained, "num_key_value_heads") or heads
    return 2 * rank_layers * max(1, -(-kv_heads // tp)) * head_size * size
