# SPDX-License-Identifier: Apache-2.0
"""The files of an embedding model that Triton reads: its `config.pbtxt`, and the one that its adapter loads.

Inputs have the names that they have in the text models. A request holds texts, or token ids, one in each row.
"""

from collections.abc import Mapping
from pathlib import Path

from ensemble_configs.render.embedding_tensors import DIMENSIONS, IDS, NUM_TOKENS, TEXTS, VECTORS
from ensemble_configs.render.model_configs import GENERATED, Message
from ensemble_configs.render.pbtxt import Symbol, to_pbtxt
from ensemble_configs.render.release_file import json_with_relative_paths, load_rendered
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from trireme.base.project_files import CODE_ROOT

EMBEDDING_FILE = "embedding.json"
EMBEDDING_VERSION = 1
ADAPTER = CODE_ROOT / "serving/embeddings/triton_model.py"


def embedding_message(model: EmbeddingModelSpec, parameters: Mapping[str, str]) -> Message:
    """Return Triton's `ModelConfig` of an embedding model as plain data.

    Args:
        parameters: settings that every adapter reads.
    """
    shared: Message = {}
    if parameters:
        shared = {"parameters": [{"key": key, "value": {"string_value": text}} for key, text in parameters.items()]}
    return {
        "name": model.name,
        "backend": "python",
        "max_batch_size": model.max_batch_size,
        "version_policy": {"specific": {"versions": [EMBEDDING_VERSION]}},
        "input": [
            {"name": TEXTS, "data_type": Symbol("TYPE_STRING"), "dims": [1], "optional": True},
            # Ragged: requests of different length are joined.
            {
                "name": IDS,
                "data_type": Symbol("TYPE_INT32"),
                "dims": [-1],
                "allow_ragged_batch": True,
                "optional": True,
            },
            {"name": DIMENSIONS, "data_type": Symbol("TYPE_INT32"), "dims": [1], "optional": True},
        ],
        "output": [
            {"name": VECTORS, "data_type": Symbol("TYPE_FP32"), "dims": [-1]},
            {"name": NUM_TOKENS, "data_type": Symbol("TYPE_INT32"), "dims": [1]},
        ],
        "instance_group": [{"count": 1, "kind": Symbol("KIND_CPU")}],
        "dynamic_batching": {
            "max_queue_delay_microseconds": round(1000 * model.batch_wait_ms),
            "default_queue_policy": {"allow_timeout_override": True, "max_queue_size": model.max_queue_size},
        },
        **shared,
    }


def render_embedding_model(
    model: EmbeddingModelSpec, *, root: Path, source: str, parameters: Mapping[str, str]
) -> dict[Path, str]:
    """Return path (below `root`) and text of the generated files of an embedding model.

    Args:
        source: is named in the first line of the config.
        parameters: settings that every adapter reads.
    """
    folder = Path(model.name)
    version = folder / str(EMBEDDING_VERSION)
    config = to_pbtxt(embedding_message(model, parameters))
    return {
        folder / "config.pbtxt": f"{GENERATED}{source} by make render\n{config}",
        version / EMBEDDING_FILE: json_with_relative_paths(model, folder=(root / version).resolve()),
    }


def load_embedding_model(folder: Path) -> EmbeddingModelSpec:
    """Return the embedding model in a version folder.

    Raises:
        SpecError: its file is missing or not what it should be.
    """
    return load_rendered(EmbeddingModelSpec, folder / EMBEDDING_FILE)
