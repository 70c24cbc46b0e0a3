# SPDX-License-Identifier: Apache-2.0
"""The folder of an embedding model, in the form that Hugging Face and OpenVINO write, against what a deployment says.

Nothing of OpenVINO is loaded here.
"""

from pathlib import Path

import msgspec

from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from trireme.base.errors import SpecError
from trireme.base.known_types import known

MODEL_FILE = "openvino_model.xml"
_FILES = (MODEL_FILE, "openvino_model.bin", "config.json", "tokenizer.json")
# Models whose positions begin behind that of the padding token.
_SHIFTED = frozenset({"roberta", "xlm-roberta", "camembert"})


class _Config(msgspec.Struct, frozen=True):
    vocab_size: int
    max_position_embeddings: int | None = None
    model_type: str = ""
    pad_token_id: int | None = None


def vocab_size_of(spec: EmbeddingModelSpec) -> int:
    """Return the number of tokens that a model knows, once its folder has been found complete.

    Raises:
        SpecError: a file is missing or no configuration, or the model knows fewer positions than `max_tokens`.
    """
    field = f"embedding_models.{spec.name}"
    for name in _FILES:
        if not (spec.dir / name).is_file():
            raise SpecError(
                f"{field}.dir: {spec.dir} has no {name}; export the model to OpenVINO as docs/embeddings.md says",
                field=f"{field}.dir",
                file=spec.dir / name,
            )
    config = _read(spec.dir / "config.json")
    most = config.max_position_embeddings
    if most is not None and config.model_type in _SHIFTED:
        most -= (config.pad_token_id or 0) + 1
    if most is not None and spec.max_tokens > most:
        raise SpecError(
            f"{field}.max_tokens ({spec.shown_value('max_tokens')}) is more than the {most} positions that "
            f"{spec.dir} knows; set it to {most} or less",
            field=f"{field}.max_tokens",
            value=spec.max_tokens,
            max=most,
        )
    return config.vocab_size


def _read(path: Path) -> _Config:
    try:
        return msgspec.json.decode(path.read_bytes(), type=known(_Config))
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise SpecError(f"{path}: {exc}", file=path) from exc
