# SPDX-License-Identifier: Apache-2.0
"""An embedding model with real weights, exported as the documents say: its vectors are those of `transformers`."""

import asyncio
import json
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from running_server import RunningServer, deployment_text

from benchmarks.studies.semantic_cache import exported
from build_engines.openvino.openvino_environment import BUILD_PYTHON
from clients.access import NO_ACCESS
from clients.embedding_messages import EmbeddingRequest, Embeddings
from clients.streaming import AsyncTritonClient
from ensemble_configs.spec.deployment import load_deployment
from gateway.cache.cache_report_command import similarities_by_server
from gateway.cache.wrong_hits import read_pairs
from scripts import encoder
from trireme.base.project_files import CODE_ROOT

CHECKPOINT = encoder.checkpoint(CODE_ROOT)
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        not (CHECKPOINT.is_dir() and BUILD_PYTHON.is_file()),
        reason="no encoder: python3 scripts/bootstrap.py --only encoder build-cpu",
    ),
]
# The mean over a text's tokens, one text at a time, by the library that the model was made with.
REFERENCE = """
import json, sys, torch, transformers
folder, texts = sys.argv[1], json.loads(sys.argv[2])
tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
with torch.no_grad():
    hidden = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
vectors = torch.nn.functional.normalize(torch.stack([each.mean(dim=0) for each in hidden]), dim=1)
print(json.dumps({"vectors": vectors.tolist(), "num_tokens": [len(each) for each in hidden]}))
"""
TEXTS = (
    "What is the capital of France?",
    "Paris",
    "Ünïcode, 猫, emoji 😀 and numbers 3.14159; and a text that is rather longer than the others. " * 4,
    "def reverse(items):\n\treturn items[::-1]",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("real")
    model = {
        "name": "embed",
        "dir": str(exported(CHECKPOINT, folder / "encoder")),
        "pooling": "mean",
        "max_tokens": 256,
    }
    text = deployment_text("real", engine={"provider": "simulated"}, embedding_models=[model])
    with RunningServer(text, folder) as running:
        yield running


def embed(server: RunningServer) -> Embeddings:
    async def ask() -> Embeddings:
        async with AsyncTritonClient(server.url) as client:
            return await client.embed(EmbeddingRequest(texts=TEXTS), model="embed", timeout_s=60)

    return asyncio.run(ask())


def test_vectors_are_those_of_the_library_that_the_model_was_made_with(server: RunningServer) -> None:
    command = [str(BUILD_PYTHON), "-c", REFERENCE, str(CHECKPOINT), json.dumps(TEXTS)]
    told = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    found = embed(server)
    assert list(found.num_tokens) == told["num_tokens"]
    for raw, expected in zip(found.vectors, told["vectors"], strict=True):
        vector = np.frombuffer(raw, np.float32)
        assert vector.shape == (384,)
        assert float(vector @ np.array(expected)) > 0.9999  # the weights are exported in 16 bits


def test_questions_with_the_same_answer_are_more_alike_than_unrelated_ones(server: RunningServer) -> None:
    pairs = read_pairs(CODE_ROOT / "examples/semantic_cache/pairs.jsonl")
    [spec] = load_deployment(Path(server.folder / "deployment.yaml")).embedding_models
    found = asyncio.run(similarities_by_server(pairs, spec, server.url, NO_ACCESS))
    by_kind: dict[str, list[float]] = {}
    for pair, similarity in zip(pairs, found, strict=True):
        by_kind.setdefault(pair.kind, []).append(float(similarity))
    medians = {kind: statistics.median(values) for kind, values in by_kind.items()}
    assert medians["unrelated"] < 0.2
    assert medians["reworded"] > 0.6
    assert medians["turned around"] > medians["reworded"]  # which is why some hits are wrong
