# SPDX-License-Identifier: Apache-2.0
"""The differences of a compiled engine from its recipe: `trtllm-build` changes flags with a warning and ends with 0.

A difference that makes impossible what the recipe asks for fails the build, before the release is sealed; the rest is
recorded in the manifest. What config.json does not say is not judged; 1.1 and 1.2 write every field.
"""

from collections.abc import Iterator
from typing import NamedTuple

from build_engines.migration.compiled_engine import CompiledEngine, int_of
from build_engines.recipes.build_route import max_draft_len
from build_engines.recipes.recipe import TensorRtRecipe
from build_engines.recipes.recipe_parts import Plugins
from build_engines.recipes.trtllm_versions import KV_QUANT_ALGOS, QUANT_ALGOS, numbers
from build_engines.tensorrt_llm.trtllm_commands import SPECULATION_MODES
from ensemble_configs.releases.release_parts import EngineDifference

_LIMITS = ("max_batch_size", "max_num_tokens", "max_input_len", "max_beam_width")
# Without these an engine is not what its recipe is for: in-flight batching, chunked prefill and block reuse.
_NEEDED_PLUGINS = frozenset(
    {"use_paged_context_fmha", "context_fmha", "remove_input_padding", "gpt_attention_plugin"}
)  # fmt: skip
_OFF = (None, False, "disable")


class Difference(NamedTuple):
    """A setting that was built in another way than the recipe asks."""

    setting: str  # "build_config.max_num_tokens"
    asked: object
    built: object
    is_fatal: bool

    def __str__(self) -> str:
        return f"config.json says {self.setting} {self.built!r}, and the recipe {self.asked!r}"

    @property
    def recorded(self) -> EngineDifference:
        """Return the difference as the manifest has it."""
        return EngineDifference(setting=self.setting, asked=_shown(self.asked), built=_shown(self.built))


def engine_differences(engine: CompiledEngine, recipe: TensorRtRecipe) -> list[Difference]:
    """Return how an engine differs from its recipe, the fatal ones first."""
    found = [
        *_version(engine, recipe),
        *_limits(engine, recipe),
        *_quantization(engine, recipe),
        *_plugins(engine, recipe),
        *_gathering(engine, recipe),
        *_speculation(engine, recipe),
        *_lora(engine, recipe),
    ]
    return sorted(found, key=lambda difference: not difference.is_fatal)


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _version(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    if engine.version and numbers(engine.version) != numbers(recipe.tensorrt_llm):
        yield Difference("version", recipe.tensorrt_llm, engine.version, is_fatal=True)


def _limits(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    for name in _LIMITS:
        asked, built = getattr(recipe, name), int_of(engine.build, name)
        if built != asked:
            yield Difference(f"build_config.{name}", asked, built, is_fatal=built is None or built < asked)
    # Upstream adds a step's drafts, and for EAGLE its layers, to what requests may have.
    built = int_of(engine.build, "max_seq_len")
    drafts = int_of(engine.build, "max_draft_len") or 0 if engine.speculation != "none" else 0
    if built is None or built != recipe.max_seq_len:
        is_fatal = built is None or built - drafts < recipe.max_seq_len
        yield Difference("build_config.max_seq_len", recipe.max_seq_len, built, is_fatal=is_fatal)
    asked_opt, opt = recipe.opt_num_tokens, int_of(engine.build, "opt_num_tokens")
    if asked_opt is not None and opt is not None and opt != asked_opt:
        yield Difference("build_config.opt_num_tokens", asked_opt, opt, is_fatal=False)
    cache = engine.build.get("kv_cache_type")
    if cache is not None and str(cache).rpartition(".")[2].lower() != recipe.kv_cache_type:
        yield Difference("build_config.kv_cache_type", recipe.kv_cache_type, cache, is_fatal=True)
    if recipe.is_weight_streaming and engine.build.get("weight_streaming") is False:
        yield Difference("build_config.weight_streaming", True, False, is_fatal=True)


def _quantization(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    quantization = engine.quantization
    for key, asked in (
        ("quant_algo", QUANT_ALGOS[recipe.format]),
        ("kv_cache_quant_algo", (KV_QUANT_ALGOS[recipe.kv_format],)),
    ):
        if key in quantization and quantization[key] not in asked:
            wanted = " or ".join(map(str, asked))
            yield Difference(f"pretrained_config.quantization.{key}", wanted, quantization[key], is_fatal=True)
    logits = engine.pretrained.get("logits_dtype")
    if logits is not None and logits != recipe.logits_dtype:
        yield Difference("pretrained_config.logits_dtype", recipe.logits_dtype, logits, is_fatal=False)


def _plugins(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    plugins = engine.plugins
    for name in Plugins.model_fields:
        asked = getattr(recipe.plugins, name)
        if name not in plugins:
            continue
        built = plugins[name]
        if asked == "auto":  # upstream chooses; off is a difference only where the engine is nothing without it
            if name in _NEEDED_PLUGINS and built in _OFF:
                yield Difference(f"plugin_config.{name}", asked, built, is_fatal=True)
        elif (built in _OFF) != (asked in _OFF) or (asked not in _OFF and built not in (asked, "auto")):
            is_fatal = name in _NEEDED_PLUGINS and built in _OFF
            yield Difference(f"plugin_config.{name}", asked, built, is_fatal=is_fatal)
    block = int_of(plugins, "tokens_per_block")
    if block is not None and block != recipe.kv_block_tokens:
        yield Difference("plugin_config.tokens_per_block", recipe.kv_block_tokens, block, is_fatal=True)


def _gathering(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    # Generation logits are asked for at load in 1.x, whatever the flag said; context logits are built in.
    for name, asked, is_needed in (
        ("gather_context_logits", recipe.is_gathering_context_logits, True),
        ("gather_generation_logits", recipe.is_gathering_generation_logits, False),
    ):
        built = engine.build.get(name)
        if built is not None and bool(built) != asked:
            yield Difference(f"build_config.{name}", asked, bool(built), is_fatal=is_needed and asked)


def _speculation(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    if "speculative_decoding_mode" not in engine.build:
        return
    asked = next((mode for kind, mode in SPECULATION_MODES.items() if isinstance(recipe.speculation, kind)), "none")
    if engine.speculation != asked:
        yield Difference("build_config.speculative_decoding_mode", asked, engine.speculation, is_fatal=True)
    drafts, built = max_draft_len(recipe), int_of(engine.build, "max_draft_len") or 0
    if built != drafts:
        yield Difference("build_config.max_draft_len", drafts, built, is_fatal=built < drafts)


def _lora(engine: CompiledEngine, recipe: TensorRtRecipe) -> Iterator[Difference]:
    if recipe.lora is None or "lora_plugin" not in engine.plugins:
        return
    if not engine.has_lora:
        yield Difference("plugin_config.lora_plugin", recipe.lora.plugin, None, is_fatal=True)
        return
    found = engine.build.get("lora_config")
    config = found if isinstance(found, dict) else {}
    rank, modules = config.get("max_lora_rank"), config.get("lora_target_modules")
    if isinstance(rank, int) and rank != recipe.lora.max_rank:
        is_fatal = rank < recipe.lora.max_rank
        yield Difference("lora_config.max_lora_rank", recipe.lora.max_rank, rank, is_fatal=is_fatal)
    if isinstance(modules, list) and (missing := set(recipe.lora.target_modules) - set(map(str, modules))):
        asked = ", ".join(recipe.lora.target_modules)
        yield Difference(
            "lora_config.lora_target_modules", asked, f"none of {', '.join(sorted(missing))}", is_fatal=True
        )
