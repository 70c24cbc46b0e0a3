# SPDX-License-Identifier: Apache-2.0
"""Requests for embeddings that are joined: each is answered, or refused by name, by itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_encoder import MAX_POSITIONS, VOCABULARY, WIDTH, ids_of, small_tokenizer, vector_of, write_encoder

from ensemble_configs.render.embedding_config import render_embedding_model
from ensemble_configs.render.embedding_tensors import DIMENSIONS, IDS, NUM_TOKENS, TEXTS, VECTORS
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from serving.embeddings.embedding_service import AskedEmbeddings, EmbeddingService, Result
from serving.engines.embedding.text_encoder import TextEncoder
from trireme.base.errors import RequestCancelled, RequestError, ServingError, Unavailable

Weights = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return write_encoder(folder)


@pytest.fixture
def service(folder: Path, weights: Weights) -> EmbeddingService:
    del weights
    return make(folder)


def make(folder: Path, **fields: Any) -> EmbeddingService:
    spec = EmbeddingModelSpec.model_validate(
        {"name": "small", "dir": folder, "pooling": "mean", "max_tokens": MAX_POSITIONS, **fields}
    )
    return EmbeddingService(spec, small_tokenizer(), TextEncoder(spec), vocab_size=len(VOCABULARY))


def texts(*rows: str | bytes, **more: Any) -> AskedEmbeddings:
    raw = [row if isinstance(row, bytes) else row.encode() for row in rows]
    return AskedEmbeddings({TEXTS: np.array(raw, np.object_).reshape(-1, 1), **more})


def token_ids(*rows: list[int], **more: Any) -> AskedEmbeddings:
    longest = max(map(len, rows))
    return AskedEmbeddings({IDS: np.array([row + [-1] * (longest - len(row)) for row in rows], np.int32), **more})


def dimensions(value: int, num_rows: int = 1) -> dict[str, NDArray[np.int32]]:
    return {DIMENSIONS: np.full((num_rows, 1), value, np.int32)}


def answered(result: Result | ServingError) -> Result:
    assert not isinstance(result, ServingError), result
    return result


def refused(result: Result | ServingError) -> RequestError:
    assert isinstance(result, RequestError), result
    return result


def test_joined_requests_get_the_vectors_of_their_own_texts(service: EmbeddingService, weights: Weights) -> None:
    asked = [["hello"], ["what is it?", "a long text, which is longer than the others"], ["bye", "hello"]]
    results = [answered(each) for each in service.embed([texts(*rows) for rows in asked])]
    for rows, result in zip(asked, results, strict=True):
        assert result[VECTORS].dtype == np.float32
        assert result[NUM_TOKENS].tolist() == [[len(ids_of(row))] for row in rows]
        for row, vector in zip(rows, result[VECTORS], strict=True):
            assert vector == pytest.approx(vector_of(weights, ids_of(row)), abs=2e-5)


def test_token_ids_are_read_as_they_are_and_padding_is_left_out(service: EmbeddingService, weights: Weights) -> None:
    rows = [[10, 11], [12, 13, 14, 15]]
    [result] = map(answered, service.embed([token_ids(*rows)]))
    assert result[NUM_TOKENS].tolist() == [[2], [4]]
    for row, vector in zip(rows, result[VECTORS], strict=True):
        assert vector == pytest.approx(vector_of(weights, row), abs=2e-5)


def test_a_prefix_is_put_before_texts_and_not_before_token_ids(folder: Path, weights: Weights) -> None:
    service = make(folder, prefix="query: ")
    of_text, of_ids = map(answered, service.embed([texts("hello"), token_ids(ids_of("hello"))]))
    assert of_text[VECTORS][0] == pytest.approx(vector_of(weights, ids_of("query: hello")), abs=2e-5)
    assert of_ids[VECTORS][0] == pytest.approx(vector_of(weights, ids_of("hello")), abs=2e-5)


@pytest.mark.parametrize(
    ("asked", "facts", "said"),
    [
        (AskedEmbeddings({}), {"field": TEXTS}, "got neither"),
        (AskedEmbeddings({**texts("a").tensors, **token_ids([5]).tensors}), {"field": TEXTS}, "got both"),
        (texts("a", ""), {"field": TEXTS, "index": 1}, "is empty"),
        (texts(b"\xff"), {"field": TEXTS, "index": 0}, "not UTF-8 at byte 0"),
        (texts("a", "b " * 63), {"field": TEXTS, "index": 1, "value": 65, "max": 64}, "has 65 tokens"),
        (texts("b" * 100_000), {"field": TEXTS, "index": 0}, "has 100000 bytes"),
        (token_ids([5], [-1]), {"field": IDS, "index": 1}, "is empty"),
        (token_ids([5, -1, 6]), {"field": IDS, "index": 0, "value": -1}, "must be from 0 to"),
        (token_ids([len(VOCABULARY)]), {"field": IDS, "index": 0, "value": len(VOCABULARY)}, "must be from 0 to"),
        (token_ids([5] * 65), {"field": IDS, "index": 0, "value": 65, "max": 64}, "has 65 tokens"),
        (texts("a", **dimensions(8)), {"field": DIMENSIONS, "value": 8}, f"must be {WIDTH} of small"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused_by_name_and_fails_alone(
    service: EmbeddingService, weights: Weights, asked: AskedEmbeddings, facts: dict[str, object], said: str
) -> None:
    wrong, right = service.embed([asked, texts("hello")])
    error = refused(wrong)
    assert said in error.message
    assert error.facts.items() >= facts.items()
    assert answered(right)[VECTORS][0] == pytest.approx(vector_of(weights, ids_of("hello")), abs=2e-5)


def test_the_longest_text_is_taken(service: EmbeddingService) -> None:
    [result] = map(answered, service.embed([texts("b " * 62)]))
    assert result[NUM_TOKENS].tolist() == [[MAX_POSITIONS]]


def test_dimensions_cut_the_vectors_of_a_model_that_allows_it(folder: Path, weights: Weights) -> None:
    service = make(folder, is_truncatable=True)
    cut, whole, too_many, none, both = service.embed(
        [
            texts("hello", "bye", **dimensions(4, 2)),
            texts("hello", **dimensions(WIDTH)),
            texts("hello", **dimensions(WIDTH + 1)),
            texts("hello", **dimensions(0)),
            texts("hello", "bye", **{DIMENSIONS: np.array([[4], [5]], np.int32)}),
        ]
    )
    for row, vector in zip(("hello", "bye"), answered(cut)[VECTORS], strict=True):
        beginning = vector_of(weights, ids_of(row))[:4]
        assert vector == pytest.approx(beginning / np.linalg.norm(beginning), abs=2e-5)
    assert answered(whole)[VECTORS].shape == (1, WIDTH)
    for wrong in (too_many, none):
        assert f"must be from 1 to {WIDTH}" in refused(wrong).message
    assert "the same for all rows" in refused(both).message


def test_a_client_that_has_gone_gets_nothing_and_others_do(service: EmbeddingService) -> None:
    gone = AskedEmbeddings(texts("hello").tensors, lambda: True)
    left, stayed = service.embed([gone, texts("hello")])
    assert isinstance(left, RequestCancelled)
    assert answered(stayed)[VECTORS].shape == (1, WIDTH)


def test_a_server_that_drains_refuses_new_requests(service: EmbeddingService) -> None:
    service.refuse_new(Unavailable("the server is shutting down", reason="draining"))
    [result] = service.embed([texts("hello")])
    assert isinstance(result, Unavailable)
    assert service.num_running == 0


def test_a_request_that_is_cancelled_while_it_is_computed_fails_with_the_reason(folder: Path, weights: Weights) -> None:
    del weights
    service = make(folder, max_batch_size=1)

    def is_cancelled() -> bool:
        service.cancel_all(Unavailable("the server shut down before this was done", reason="shutdown"))
        return False

    [result] = service.embed([AskedEmbeddings(texts("a", "b").tensors, is_cancelled)])
    assert isinstance(result, Unavailable)


def test_the_service_of_a_rendered_model_is_that_of_its_deployment(
    tmp_path: Path, folder: Path, weights: Weights
) -> None:
    spec = EmbeddingModelSpec(name="small", dir=folder, pooling="cls", max_tokens=MAX_POSITIONS)
    for path, text in render_embedding_model(spec, root=tmp_path, source="test", parameters={}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    [result] = map(answered, EmbeddingService.load(tmp_path / "small" / "1").embed([texts("hello")]))
    assert result[VECTORS][0] == pytest.approx(vector_of(weights, ids_of("hello"), pooling="cls"), abs=2e-5)
