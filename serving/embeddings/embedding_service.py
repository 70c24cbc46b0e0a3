# SPDX-License-Identifier: Apache-2.0
"""The service of one embedding model: requests that Triton has joined are tokenized and computed together.

Each request is answered or refused by itself.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from ensemble_configs.render.embedding_config import load_embedding_model
from ensemble_configs.render.embedding_tensors import NUM_TOKENS, TEXTS, VECTORS
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from serving.embeddings.embedding_inputs import EmbeddingInputs, read_inputs, refuse_length
from serving.engines.embedding.embedding_folder import vocab_size_of
from serving.engines.embedding.text_encoder import TextEncoder, TokenIds
from serving.requests.tensor_sink import Tensors
from serving.text.token_bytes import token_bytes
from serving.text.tokenizer_files import load_tokenizer
from trireme.base.errors import RequestCancelled, RequestError, ServingError, Unavailable


class AskedEmbeddings(NamedTuple):
    """A request, by the names of the model's inputs."""

    tensors: Tensors
    is_cancelled: Callable[[], bool] = lambda: False


Result = dict[str, NDArray[np.generic]]


class EmbeddingService:
    """An embedding model that is loaded, for one caller of `embed` at a time.

    Args:
        vocab_size: tokens of the model.

    Attributes:
        num_running: requests that are being answered.
    """

    def __init__(
        self, spec: EmbeddingModelSpec, tokenizer: Tokenizer, encoder: TextEncoder, *, vocab_size: int
    ) -> None:
        self._spec, self._tokenizer, self._encoder, self._vocab_size = spec, tokenizer, encoder, vocab_size
        self._max_bytes = spec.max_tokens * token_bytes(tokenizer).most
        self._refusal: ServingError | None = None
        self.num_running = 0

    @classmethod
    def load(cls, folder: Path) -> "EmbeddingService":
        """Load the model of a version folder of Triton's repository.

        Raises:
            SpecError: a file is missing, or is not what it should be.
        """
        spec = load_embedding_model(folder)
        vocab_size = vocab_size_of(spec)
        return cls(spec, load_tokenizer(spec.dir), TextEncoder(spec), vocab_size=vocab_size)

    def refuse_new(self, because: Unavailable) -> None:
        """Refuse every request from now on."""
        self._refusal = because

    def cancel_all(self, because: ServingError) -> None:
        """End what is being computed after its batch; its requests fail with `because`."""
        self._refusal = because

    def embed(self, asked: Sequence[AskedEmbeddings]) -> list[Result | ServingError]:
        """Return the outputs of each request, or the error that it fails with."""
        if self._refusal is not None:
            return [self._refusal] * len(asked)
        self.num_running = len(asked)
        try:
            return self._embed(asked)
        finally:
            self.num_running = 0

    def _embed(self, asked: Sequence[AskedEmbeddings]) -> list[Result | ServingError]:
        rows, failed = self._rows(asked)
        ids = [each for _, of_one in rows.values() for each in of_one]

        def is_wanted() -> bool:
            return self._refusal is None and not all(asked[number].is_cancelled() for number in rows)

        vectors = self._encoder.vectors(ids, is_wanted=is_wanted) if ids else np.zeros((0, 0), np.float32)
        results: list[Result | ServingError] = []
        begin = 0
        for number, one in enumerate(asked):
            if (error := failed.get(number)) is not None:
                results.append(error)
                continue
            inputs, of_one = rows[number]
            part = vectors[begin : begin + len(of_one)]
            begin += len(of_one)
            if self._refusal is not None:
                results.append(self._refusal)
            elif one.is_cancelled():
                results.append(RequestCancelled("the client has gone"))
            else:
                results.append({
                    VECTORS: part if inputs.dimensions is None else self._encoder.cut(part, inputs.dimensions),
                    NUM_TOKENS: np.array([[len(each)] for each in of_one], np.int32),
                })  # fmt: skip
        return results

    def _rows(
        self, asked: Sequence[AskedEmbeddings]
    ) -> tuple[dict[int, tuple[EmbeddingInputs, list[TokenIds]]], dict[int, ServingError]]:
        """Return the inputs and the token ids of each request, by its number, and the errors of the others."""
        inputs: dict[int, EmbeddingInputs] = {}
        failed: dict[int, ServingError] = {}
        for number, one in enumerate(asked):
            try:
                inputs[number] = self._inputs(one)
            except ServingError as exc:
                failed[number] = exc
        texts = [self._spec.prefix + text for each in inputs.values() for text in each.texts]
        encoded = iter(self._tokenizer.encode_batch_fast(texts, add_special_tokens=True) if texts else ())
        rows: dict[int, tuple[EmbeddingInputs, list[TokenIds]]] = {}
        for number, each in inputs.items():
            of_one = each.ids or [np.array(next(encoded).ids, np.int32) for _ in each.texts]
            wrong = next((index for index, ids in enumerate(of_one) if not 0 < len(ids) <= self._spec.max_tokens), None)
            if wrong is None:
                rows[number] = (each, of_one)
            else:
                failed[number] = self._refused(len(of_one[wrong]), wrong)
        return rows, failed

    def _inputs(self, asked: AskedEmbeddings) -> EmbeddingInputs:
        if asked.is_cancelled():
            raise RequestCancelled("the client has gone")
        inputs = read_inputs(asked.tensors, self._spec, width=self._encoder.width, vocab_size=self._vocab_size)
        for index, text in enumerate(inputs.texts):
            if (num_bytes := len(text.encode())) > self._max_bytes:  # before anything is tokenized
                raise RequestError(
                    f"{TEXTS} has {num_bytes} bytes; {self._spec.name} takes at most {self._spec.max_tokens} tokens, "
                    f"which are no more than {self._max_bytes} bytes; shorten it, or send its parts",
                    field=TEXTS,
                    index=index,
                    value=num_bytes,
                    max=self._max_bytes,
                )
        return inputs

    def _refused(self, num_tokens: int, index: int) -> RequestError:
        if not num_tokens:
            return RequestError(f"{TEXTS} gives no tokens; send more than white space", field=TEXTS, index=index)
        return refuse_length(num_tokens, index, self._spec, field=TEXTS)
