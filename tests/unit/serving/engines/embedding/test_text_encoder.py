# SPDX-License-Identifier: Apache-2.0
"""Vectors of texts on OpenVINO, against plain numpy of the same weights; and folders that are no embedding model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from numpy.typing import NDArray
from openvino import opset13 as ops
from small_encoder import MAX_POSITIONS, WIDTH, ids_of, vector_of, write_encoder

from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from serving.engines.embedding.embedding_folder import vocab_size_of
from serving.engines.embedding.text_encoder import TextEncoder
from trireme.base.errors import SpecError

TEXTS = ["hello", "what is the capital of france?", "a", "23 + 45 = 68, is it not? yes, it is.", "bye!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture(scope="module")
def weights(folder: Path) -> dict[str, NDArray[np.float32]]:
    return write_encoder(folder)


def spec_of(folder: Path, **fields: Any) -> EmbeddingModelSpec:
    return EmbeddingModelSpec.model_validate(
        {"name": "small", "dir": folder, "pooling": "mean", "max_tokens": MAX_POSITIONS, **fields}
    )


def ids() -> list[NDArray[np.int32]]:
    return [np.array(ids_of(text), np.int32) for text in TEXTS]


@pytest.mark.parametrize("pooling", ["cls", "mean", "last_token"])
@pytest.mark.parametrize("is_normalized", [True, False])
def test_vectors_in_a_batch_are_those_of_each_text_alone(
    folder: Path, weights: dict[str, NDArray[np.float32]], pooling: str, *, is_normalized: bool
) -> None:
    encoder = TextEncoder(spec_of(folder, pooling=pooling, is_normalized=is_normalized))
    found = encoder.vectors(ids())
    assert found.shape == (len(TEXTS), WIDTH)
    assert found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        expected = vector_of(weights, ids_of(text), pooling=pooling, is_normalized=is_normalized)
        assert vector == pytest.approx(expected, abs=2e-5)


@pytest.mark.parametrize(("max_texts", "max_tokens"), [(1, 64), (2, 64), (64, 128), (64, 8192)])
def test_batches_of_any_size_give_the_same_vectors_in_the_order_of_the_texts(
    folder: Path, weights: dict[str, NDArray[np.float32]], max_texts: int, max_tokens: int
) -> None:
    encoder = TextEncoder(spec_of(folder, max_batch_size=max_texts, max_batch_tokens=max_tokens))
    for text, vector in zip(TEXTS, encoder.vectors(ids()), strict=True):
        assert vector == pytest.approx(vector_of(weights, ids_of(text)), abs=2e-5)


def test_a_cut_vector_is_the_beginning_with_length_one(folder: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    encoder = TextEncoder(spec_of(folder))
    cut = encoder.cut(encoder.vectors(ids()), 5)
    for text, vector in zip(TEXTS, cut, strict=True):
        beginning = vector_of(weights, ids_of(text))[:5]
        assert vector == pytest.approx(beginning / np.linalg.norm(beginning), abs=2e-5)


def test_what_nobody_wants_any_more_is_not_computed(folder: Path, weights: object) -> None:
    del weights
    encoder = TextEncoder(spec_of(folder, max_batch_size=1))
    found = encoder.vectors(ids(), is_wanted=lambda: False)
    assert [bool(vector.any()) for vector in found].count(True) == 1


def test_a_folder_tells_its_vocabulary(folder: Path, weights: dict[str, NDArray[np.float32]]) -> None:
    assert vocab_size_of(spec_of(folder)) == len(weights["words"])


@pytest.mark.parametrize("name", ["openvino_model.xml", "openvino_model.bin", "config.json", "tokenizer.json"])
def test_a_folder_without_a_file_is_refused_by_its_name(tmp_path: Path, name: str) -> None:
    write_encoder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(SpecError, match=f"has no {name}"):
        vocab_size_of(spec_of(tmp_path))


def test_more_tokens_than_positions_are_refused_with_the_most(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    with pytest.raises(SpecError, match=r"max_tokens \(65\) is more than the 64 positions") as refused:
        vocab_size_of(spec_of(tmp_path, max_tokens=65))
    assert refused.value.facts["field"] == "embedding_models.small.max_tokens"


def test_the_positions_of_roberta_begin_behind_its_padding(tmp_path: Path) -> None:
    write_encoder(tmp_path)
    config = {"model_type": "xlm-roberta", "vocab_size": 10, "max_position_embeddings": 514, "pad_token_id": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert vocab_size_of(spec_of(tmp_path, max_tokens=512)) == 10
    with pytest.raises(SpecError, match="512 positions"):
        vocab_size_of(spec_of(tmp_path, max_tokens=513))


@pytest.mark.parametrize("text", ["{", '{"hidden_size": 3}', '{"vocab_size": "many"}'])
def test_a_broken_configuration_is_refused(tmp_path: Path, text: str) -> None:
    write_encoder(tmp_path)
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=r"config\.json"):
        vocab_size_of(spec_of(tmp_path))


def save(folder: Path, inputs: dict[str, Any], output: Any, *, name: str) -> None:
    for input_name, node in inputs.items():
        node.output(0).set_names({input_name})
    result = ops.result(output)
    result.output(0).set_names({name})
    openvino.save_model(openvino.Model([result], list(inputs.values()), "odd"), folder / "openvino_model.xml")


def test_a_model_with_a_kv_cache_is_refused_by_its_input(tmp_path: Path) -> None:
    inputs = {name: ops.parameter([-1, -1], np.int64) for name in ("input_ids", "attention_mask")}
    inputs["beam_idx"] = ops.parameter([-1], np.int32)
    hidden = ops.unsqueeze(ops.convert(inputs["input_ids"], "f32"), ops.constant([2]))
    shifted = ops.add(hidden, ops.convert(ops.reduce_sum(inputs["beam_idx"], ops.constant([0])), "f32"))
    save(tmp_path, inputs, shifted, name="last_hidden_state")
    with pytest.raises(SpecError, match="beam_idx"):
        TextEncoder(spec_of(tmp_path))


def test_a_model_that_pools_itself_is_refused_with_its_outputs(tmp_path: Path) -> None:
    inputs = {name: ops.parameter([-1, -1], np.int64) for name in ("input_ids", "attention_mask")}
    pooled = ops.convert(ops.multiply(inputs["input_ids"], inputs["attention_mask"]), "f32")
    save(tmp_path, inputs, pooled, name="sentence_embedding")
    with pytest.raises(SpecError, match=r"last_hidden_state.*sentence_embedding"):
        TextEncoder(spec_of(tmp_path))
