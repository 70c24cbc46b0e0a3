# SPDX-License-Identifier: Apache-2.0
"""An encoder on OpenVINO: the token ids of texts to a vector each, whatever else is in the batch.

OpenVINO GenAI's own pipeline for embeddings takes no token ids, cuts long texts without a word and does not tell how
many tokens a text has; so this asks the model itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import openvino
from numpy.typing import NDArray

from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from serving.engines.embedding.embedding_folder import MODEL_FILE
from serving.engines.embedding.text_batches import text_batches
from trireme.base.errors import SpecError

Vectors = NDArray[np.float32]
TokenIds = NDArray[np.int32]

_IDS, _MASK, _TYPES, _POSITIONS = "input_ids", "attention_mask", "token_type_ids", "position_ids"
_KNOWN_INPUTS = (_IDS, _MASK, _TYPES, _POSITIONS)
_HIDDEN = ("last_hidden_state", "token_embeddings")  # the output's name, as models are exported
_TINY = np.float32(1e-12)  # of a vector of zeros, which has no direction


class TextEncoder:
    """An embedding model that is loaded; one thread at a time may ask it.

    Attributes:
        width: values of a vector.

    Raises:
        SpecError: the model has inputs that are not known here, or no output of a vector for each token.
    """

    def __init__(self, spec: EmbeddingModelSpec) -> None:
        self._spec = spec
        model = openvino.Core().read_model(spec.dir / MODEL_FILE)
        self._inputs = _inputs_of(model, spec)
        self._output = _output_of(model, spec)
        properties: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY"}
        if spec.execution_mode == "accuracy":
            properties["EXECUTION_MODE_HINT"] = "ACCURACY"
        if spec.num_threads is not None:
            properties["INFERENCE_NUM_THREADS"] = spec.num_threads
        compiled = openvino.Core().compile_model(model, "CPU", properties)
        self._request = compiled.create_infer_request()
        self.width = int(self.vectors([np.zeros(1, np.int32)]).shape[1])  # and the first request finds it warm

    def vectors(self, ids: Sequence[TokenIds], *, is_wanted: Callable[[], bool] = lambda: True) -> Vectors:
        """Return vectors, ``[num_texts, width]``.

        Args:
            ids: of each text, ``[num_tokens]``, at least one text with at least one token each.
            is_wanted: is asked between two batches; after a no the vectors that are missing are zeros.
        """
        found: Vectors | None = None
        lengths = [len(each) for each in ids]
        for batch in text_batches(lengths, max_texts=self._spec.max_batch_size, max_tokens=self._spec.max_batch_tokens):
            if found is not None and not is_wanted():
                break
            part = self._of_batch([ids[index] for index in batch])
            if found is None:
                found = np.zeros((len(ids), part.shape[1]), np.float32)
            found[batch] = part
        assert found is not None, "there are texts"
        return found

    def cut(self, vectors: Vectors, dimensions: int) -> Vectors:
        """Return the beginnings of vectors, ``[num_texts, dimensions]``, with the length that whole ones have."""
        return self._scaled(np.ascontiguousarray(vectors[:, :dimensions]))

    def _of_batch(self, ids: Sequence[TokenIds]) -> Vectors:
        lengths = np.array([len(each) for each in ids])
        mask = np.arange(lengths.max()) < lengths[:, np.newaxis]  # [num_texts, num_tokens]
        tokens = np.zeros(mask.shape, np.int64)
        tokens[mask] = np.concatenate(ids)
        values = {
            _IDS: tokens,
            _MASK: mask,
            _TYPES: np.zeros_like(tokens),
            _POSITIONS: np.broadcast_to(np.arange(mask.shape[1]), mask.shape),
        }
        self._request.infer({name: values[name].astype(kind) for name, kind in self._inputs.items()})
        hidden = self._request.get_tensor(self._output).data  # [num_texts, num_tokens, width]
        return self._scaled(self._pooled(hidden, mask, lengths))

    def _pooled(self, hidden: NDArray[np.float32], mask: NDArray[np.bool_], lengths: NDArray[np.int_]) -> Vectors:
        match self._spec.pooling:
            case "cls":
                pooled = hidden[:, 0]
            case "last_token":
                pooled = hidden[np.arange(len(lengths)), lengths - 1]
            case "mean":
                total = np.einsum("ntw,nt->nw", hidden, mask.astype(hidden.dtype))
                pooled = total / lengths[:, np.newaxis]
        return np.array(pooled, np.float32)  # a copy: `hidden` is the request's own

    def _scaled(self, vectors: Vectors) -> Vectors:
        if not self._spec.is_normalized:
            return vectors
        norms = np.linalg.norm(vectors, axis=1, keepdims=True)
        return np.asarray(vectors / np.maximum(norms, _TINY), np.float32)


def _inputs_of(model: Any, spec: EmbeddingModelSpec) -> dict[str, Any]:
    """Return the inputs of a model by their names, each with its type in numpy."""
    found = {}
    for each in model.inputs:
        name = next((known for known in _KNOWN_INPUTS if known in each.get_names()), None)
        if name is None:
            raise SpecError(
                f"embedding_models.{spec.name}: the model in {spec.dir} has the input {each.get_any_name()}, which is "
                f"not known here; there are {', '.join(_KNOWN_INPUTS)}; export it as feature-extraction, without a "
                "KV cache",
                field=f"embedding_models.{spec.name}.dir",
                value=each.get_any_name(),
            )
        found[name] = each.get_element_type().to_dtype()
    if _IDS not in found or _MASK not in found:
        raise SpecError(
            f"embedding_models.{spec.name}: the model in {spec.dir} lacks {_IDS} or {_MASK}; export it as "
            "feature-extraction",
            field=f"embedding_models.{spec.name}.dir",
        )
    return found


def _output_of(model: Any, spec: EmbeddingModelSpec) -> Any:
    """Return the output with a vector for each token."""
    of_tokens = [each for each in model.outputs if each.get_partial_shape().rank.get_length() == 3]
    named = [each for each in of_tokens if each.get_names() & set(_HIDDEN)]
    if not (named or len(of_tokens) == 1):
        names = ", ".join(each.get_any_name() for each in model.outputs)
        raise SpecError(
            f"embedding_models.{spec.name}: the model in {spec.dir} has no output last_hidden_state, of a vector for "
            f"each token (there are {names}); export it as feature-extraction",
            field=f"embedding_models.{spec.name}.dir",
        )
    return (named or of_tokens)[0]
