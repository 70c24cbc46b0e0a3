# SPDX-License-Identifier: Apache-2.0
"""The example of a user's own model: real vectors, alone and in a batch."""

import importlib.util
from types import ModuleType

import numpy as np
import pytest

from trireme.base.project_files import CODE_ROOT

FOLDER = CODE_ROOT / "examples/embedding_model"


@pytest.fixture(scope="module")
def model() -> ModuleType:
    spec = importlib.util.spec_from_file_location("embedding_model", FOLDER / "1/model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TEXTS = [
    "What is the capital of France?",
    "Which city is the capital of France?",
    "Once upon a time, there was a clever frog named Lucy. Lucy lived in a house with a red door.",
    "23 + 45 =",
]


def test_each_vector_has_length_one_and_like_texts_have_like_ones(model: ModuleType) -> None:
    vectors = model.Embedder(model.DEMO_MODEL).embed(TEXTS)
    assert vectors.shape == (4, 256)
    assert vectors.dtype == np.float32
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    alike = vectors @ vectors.T
    assert alike[0, 1] > max(alike[0, 2], alike[0, 3]) + 0.05


def test_a_text_has_the_same_vector_alone_and_in_a_batch_of_longer_ones(model: ModuleType) -> None:
    embedder = model.Embedder(model.DEMO_MODEL)
    together = embedder.embed(TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        assert embedder.embed([text])[0] == pytest.approx(vector, abs=1e-3)
