# SPDX-License-Identifier: Apache-2.0
"""The configuration files of a model folder, in the form that Hugging Face writes."""

from pathlib import Path
from typing import TypeVar

import msgspec

from ensemble_configs.spec.engine.engine_spec import EngineSpec
from trireme.base.errors import SpecError
from trireme.base.known_types import known

Struct = TypeVar("Struct", bound=msgspec.Struct)


class _Config(msgspec.Struct, frozen=True, kw_only=True):
    vocab_size: int
    max_position_embeddings: int
    eos_token_id: int | list[int] | None = None


class _GenerationConfig(msgspec.Struct, frozen=True):
    eos_token_id: int | list[int] | None = None


class ModelFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A model that can be served."""

    dir: Path
    vocab_size: int
    max_position_embeddings: int
    end_ids: tuple[int, ...]


def load_model_folder(folder: Path, *, weights: str, field: str = "engine.dir") -> ModelFolder:
    """Read a model folder.

    Args:
        folder: the model folder.
        weights: name of the file that makes it a model folder.
        field: name of the folder's setting in the deployment, for messages.

    Raises:
        SpecError: the folder or a file is missing, or does not say what it should.
    """
    for name in (weights, "config.json"):
        if not (folder / name).is_file():
            raise SpecError(
                f"{field}: {folder} has no {name}; make the model with `make demo-model` or `trireme build`",
                field=field,
                file=folder / name,
            )
    config = _load(folder / "config.json", _Config)
    generation = folder / "generation_config.json"
    end_ids = _load(generation, _GenerationConfig).eos_token_id if generation.is_file() else None
    if end_ids is None:
        end_ids = config.eos_token_id
    return ModelFolder(
        dir=folder,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        end_ids=() if end_ids is None else tuple(end_ids) if isinstance(end_ids, list) else (end_ids,),
    )


def check_max_seq_len(spec: EngineSpec, model: ModelFolder) -> None:
    """Check that the model knows the positions of the longest sequence.

    Raises:
        SpecError: sequences may be longer.
    """
    most = model.max_position_embeddings
    if spec.max_seq_len > most:
        raise SpecError(
            f"engine.max_seq_len ({spec.shown_value('max_seq_len')}) > max_position_embeddings ({most}) of "
            f"{model.dir}; set it to {most} or less",
            field="engine.max_seq_len",
            value=spec.max_seq_len,
        )


def _load(file: Path, struct: type[Struct]) -> Struct:
    try:
        return msgspec.json.decode(file.read_bytes(), type=known(struct))
    except msgspec.MsgspecError as exc:
        raise SpecError(f"{file}: {exc}", file=file) from exc
