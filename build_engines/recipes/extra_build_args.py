# SPDX-License-Identifier: Apache-2.0
"""Flags of trtllm-build that a recipe passes on unchanged: the allowed ones, and those that a field replaces."""

import difflib
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator

from build_engines.recipes.recipe_parts import Plugins
from build_engines.recipes.trtllm_versions import LAST_WITH_ENGINES
from ensemble_configs.spec.trtllm_facts import VersionFacts, facts_of

Flag = bool | int | float | str
_MADE = "is made by the build"

# What `build_engines.tensorrt_llm.trtllm_commands` gives the tool, by flag: the recipe's field, or why there is none.
BUILD_FLAGS: Mapping[str, str] = {
    "max_batch_size": "max_batch_size",
    "max_input_len": "max_input_len",
    "max_seq_len": "max_seq_len",
    "max_num_tokens": "max_num_tokens",
    "opt_num_tokens": "opt_num_tokens",
    "max_beam_width": "max_beam_width",
    "kv_cache_type": "kv_cache_type",
    "tokens_per_block": "kv_block_tokens",
    "logits_dtype": "logits_dtype",
    "gather_context_logits": "is_gathering_context_logits",
    "gather_generation_logits": "is_gathering_generation_logits",
    "gather_all_token_logits": "is_gathering_context_logits and is_gathering_generation_logits",
    "weight_streaming": "is_weight_streaming",
    "workers": "builder.num_workers",
    "log_level": "builder.log_level",
    "speculative_decoding_mode": "speculation.method",
    "max_draft_len": "speculation.max_draft_len",
    "lora_plugin": "lora.plugin",
    "max_lora_rank": "lora.max_rank",
    "lora_target_modules": "lora.target_modules",
} | {name: f"plugins.{name}" for name in Plugins.model_fields}
REFUSED: Mapping[str, str] = {
    "checkpoint_dir": _MADE,
    "output_dir": _MADE,
    "output_timing_cache": _MADE,
    "model_config": _MADE,
    "build_config": "replaces every other flag; write its settings as fields of the recipe, and the rest here",
    "dry_run": "builds nothing; use trireme build --dry-run",
    "model_cls_file": "would run code of a file; use an architecture that TensorRT-LLM has",
    "model_cls_name": "would run code of a file; use an architecture that TensorRT-LLM has",
}


def _named(flags: dict[str, Flag]) -> dict[str, Flag]:
    for name, value in flags.items():
        if name.startswith("-"):
            raise ValueError(f"{name} must be without its hyphens: {name.lstrip('-')}")
        if value is False:
            raise ValueError(f"{name} is false, and a flag is given or not; leave it out, or write the word: disable")
    return flags


ExtraBuildArgs = Annotated[dict[str, Flag], AfterValidator(_named)]


def check_extra_build_args(flags: Mapping[str, Flag], *, version: str) -> None:
    """Refuse a flag that a field of the recipe says, and one that the version's trtllm-build does not have.

    Versions before the first that was read are taken to have that version's flags.

    Raises:
        ValueError: the first such flag, and what to do.
    """
    known = _facts(version).build_flags
    for name in flags:
        if (why := REFUSED.get(name)) is not None:
            raise ValueError(f"extra_build_args.{name} {why}")
        if (field := BUILD_FLAGS.get(name)) is not None:
            raise ValueError(f"extra_build_args.{name} is what {field} says; set that")
        if name not in known:
            meant = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            next_step = f"did you mean {meant[0]}?" if meant else "leave it out"
            raise ValueError(f"extra_build_args.{name} is no flag of trtllm-build {version}; {next_step}")


def _facts(version: str) -> VersionFacts:
    facts = facts_of(version)
    if facts is None or not facts.build_flags:
        facts = facts_of(LAST_WITH_ENGINES)
    assert facts is not None, "the last version with engines was read"
    return facts
