# SPDX-License-Identifier: Apache-2.0
"""The check of a compiled engine's folder against the spec that wants to serve it.

The folder's format is in `ensemble_configs.releases.built_engine`.
"""

from pathlib import Path

import msgspec

from ensemble_configs.releases.built_engine import BuiltMapping, decode_file, engine_mismatches, load_built_engine
from ensemble_configs.releases.engine_fit import refuse_mismatches
from ensemble_configs.spec.engine.tensorrt_llm_specs import TensorRtEngineSpec
from trireme.base.errors import SpecError


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class EngineFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled engine that can be served as the spec says."""

    dir: Path
    vocab_size: int
    kv_block_tokens: int
    end_ids: tuple[int, ...]
    max_batch_size: int  # the engine was built for
    max_num_tokens: int
    max_prompt_tokens: int  # longest prompt, served as the spec says


def load_engine_folder(spec: TensorRtEngineSpec) -> EngineFolder:
    """Read an engine's folder.

    Raises:
        SpecError: the folder holds no engine, a rank's file is missing, or the spec asks for more than was built.
    """
    engine = load_built_engine(spec.dir)
    refuse_mismatches(list(engine_mismatches(spec, engine)))
    checkpoint, build = engine.pretrained_config, engine.build_config
    _refuse_missing_ranks(spec.dir, checkpoint.mapping)
    max_num_tokens = min(spec.max_num_batched_tokens, build.max_num_tokens)
    return EngineFolder(
        dir=spec.dir,
        vocab_size=checkpoint.vocab_size,
        kv_block_tokens=build.plugin_config.tokens_per_block,
        end_ids=_end_ids(spec),
        max_batch_size=build.max_batch_size,
        max_num_tokens=build.max_num_tokens,
        max_prompt_tokens=build.longest_prompt(is_chunked=spec.is_chunked_prefill, max_num_tokens=max_num_tokens),
    )


def _refuse_missing_ranks(folder: Path, mapping: BuiltMapping) -> None:
    for rank in range(mapping.world_size):
        engine = folder / f"rank{rank}.engine"
        if not engine.is_file():
            raise SpecError(
                f"engine.dir: {folder} has no {engine.name}, but the engine is of {mapping.world_size} ranks",
                field="engine.dir",
                file=engine,
            )


def _end_ids(spec: TensorRtEngineSpec) -> tuple[int, ...]:
    if spec.end_ids is not None:
        return spec.end_ids
    file = spec.dir / "generation_config.json"
    if not file.is_file():
        raise SpecError(
            f"engine.end_ids is not set and {spec.dir} has no generation_config.json; name the model's end tokens",
            field="engine.end_ids",
        )
    end_ids = decode_file(file, _GenerationConfig).eos_token_id
    if end_ids is None:
        return ()
    return tuple(end_ids) if isinstance(end_ids, list) else (end_ids,)
