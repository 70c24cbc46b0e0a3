# SPDX-License-Identifier: Apache-2.0
"""What the config.json of a compiled engine fixes, checked against the spec that wants to serve it.

Source: trtllm-build 1.2 writes `pretrained_config` (of the checkpoint) and `build_config`.
"""

from pathlib import Path
from typing import TypeVar

import msgspec

from ensemble_configs.engine_specs import TensorRtEngineSpec
from ensemble_configs.errors import SpecError

Struct = TypeVar("Struct", bound=msgspec.Struct)


class _Mapping(msgspec.Struct):
    world_size: int = 1
    tp_size: int = 1
    pp_size: int = 1


class _Checkpoint(msgspec.Struct):
    vocab_size: int
    mapping: _Mapping = msgspec.field(default_factory=_Mapping)


class _Plugins(msgspec.Struct):
    tokens_per_block: int = 32
    remove_input_padding: bool | None = True
    context_fmha: bool | None = True


class _Build(msgspec.Struct):
    max_input_len: int
    max_seq_len: int
    max_batch_size: int
    max_num_tokens: int
    max_beam_width: int = 1
    gather_context_logits: bool = False
    plugin_config: _Plugins = msgspec.field(default_factory=_Plugins)

    @property
    def longest_prompt(self) -> int:
        """Tokens; with packed input and context FMHA, which are its defaults, the runtime does not read max_input_len.

        Source: TrtGptModel's constructor (cpp/tensorrt_llm/batch_manager/trtGptModel.h).
        """
        is_packed = self.plugin_config.remove_input_padding and self.plugin_config.context_fmha
        return self.max_seq_len - 1 if is_packed else self.max_input_len


class _Config(msgspec.Struct):
    pretrained_config: _Checkpoint
    build_config: _Build


class _GenerationConfig(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


class EngineFolder(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that can be served as the spec says."""

    dir: Path
    vocab_size: int
    kv_block_tokens: int
    end_ids: tuple[int, ...]


def load_engine_folder(spec: TensorRtEngineSpec) -> EngineFolder:
    """Read an engine's folder.

    Raises:
        SpecError: it is no engine folder, a rank's file is missing, or the spec asks for more than was built.
    """
    file = spec.dir / "config.json"
    if not file.is_file():
        raise SpecError(
            f"engine.dir: {spec.dir} has no config.json; build the engine with trtllm-build",
            field="engine.dir",
            file=file,
        )
    config = _decode(file, _Config)
    checkpoint, build = config.pretrained_config, config.build_config
    _refuse_other_mapping(spec, checkpoint.mapping)
    for field, wanted, built in (
        ("max_seq_len", spec.max_seq_len, build.max_seq_len),
        ("max_seq_len", spec.max_seq_len - 1, build.longest_prompt),  # any of its prompts
        ("max_num_seqs", spec.max_num_seqs, build.max_batch_size),
        ("max_num_batched_tokens", spec.max_num_batched_tokens, build.max_num_tokens),
        ("max_beam_width", spec.max_beam_width, build.max_beam_width),
        ("is_gathering_context_logits", spec.is_gathering_context_logits, build.gather_context_logits),
    ):
        if wanted > built:
            raise SpecError(
                f"engine.{field} ({getattr(spec, field)}) is more than {spec.dir} was built for ({built}); "
                "lower it or build the engine anew",
                field=f"engine.{field}",
                value=getattr(spec, field),
            )
    return EngineFolder(
        dir=spec.dir,
        vocab_size=checkpoint.vocab_size,
        kv_block_tokens=build.plugin_config.tokens_per_block,
        end_ids=_end_ids(spec),
    )


def _refuse_other_mapping(spec: TensorRtEngineSpec, mapping: _Mapping) -> None:
    for field, built in (("tp_size", mapping.tp_size), ("pp_size", mapping.pp_size)):
        wanted = getattr(spec, field)
        if wanted != built:
            raise SpecError(
                f"engine.{field} ({wanted}) differs from {built}, for which {spec.dir} was built",
                field=f"engine.{field}",
                value=wanted,
            )
    for rank in range(mapping.world_size):
        engine = spec.dir / f"rank{rank}.engine"
        if not engine.is_file():
            raise SpecError(
                f"engine.dir: {spec.dir} has no {engine.name}, but the engine is of {mapping.world_size} ranks",
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
    end_ids = _decode(file, _GenerationConfig).eos_token_id
    if end_ids is None:
        return ()
    return tuple(end_ids) if isinstance(end_ids, list) else (end_ids,)


def _decode(file: Path, struct: type[Struct]) -> Struct:
    try:
        return msgspec.json.decode(file.read_bytes(), type=struct)
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{file}: {exc}", file=file) from exc
