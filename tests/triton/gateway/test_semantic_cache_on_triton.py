# SPDX-License-Identifier: Apache-2.0
"""Kept answers for questions that are alike, and the report of wrong hits, on the real server."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_process import GatewayProcess
from numpy.typing import NDArray
from openai import OpenAI
from running_server import RunningServer, deployment_text
from small_encoder import MAX_POSITIONS, ids_of, vector_of, write_encoder

QUESTION = "what is the capital of italy?"
ALIKE = "what is the capital of italy"
OTHER = "9 8 7 6 5 4"
Weights = dict[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("encoder")


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    return write_encoder(folder)


def similarity(weights: Weights, one: str, other: str) -> float:
    return float(vector_of(weights, ids_of(one)) @ vector_of(weights, ids_of(other)))


@pytest.fixture(scope="module")
def server(folder: Path, weights: Weights, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    alike, other = similarity(weights, QUESTION, ALIKE), similarity(weights, QUESTION, OTHER)
    assert alike > other + 0.02  # vectors of drawn weights are all rather alike
    semantic = {"embedding_model": "small", "least_similarity": (alike + other) / 2, "wait_ms": 20_000.0}
    text = deployment_text(
        "asks",
        engine={"provider": "simulated"},
        embedding_models=[
            {"name": "small", "dir": str(folder), "pooling": "mean", "max_tokens": MAX_POSITIONS, "max_batch_size": 3}
        ],
        gateway={"answer_cache": {"semantic": semantic}},
    )
    with RunningServer(text, tmp_path_factory.mktemp("asks")) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    folder = tmp_path_factory.mktemp("gateway")
    with (
        GatewayProcess(server, folder) as gateway,
        OpenAI(base_url=gateway.url, api_key="none", max_retries=0) as connected,
    ):
        yield connected


def ask(client: OpenAI, question: str) -> tuple[str | None, str | None, str | None]:
    """Return the text of an answer, what gave it, and how alike the question was."""
    raw = client.chat.completions.with_raw_response.create(
        model="asks", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=8
    )
    text = raw.parse().choices[0].message.content
    return text, raw.headers.get("x-trireme-answered-by"), raw.headers.get("x-trireme-similarity")


def test_a_question_that_is_alike_gets_the_answer_and_another_one_is_asked(client: OpenAI, weights: Weights) -> None:
    text, by, _ = ask(client, QUESTION)
    assert by is None
    expected = f"{similarity(weights, QUESTION, ALIKE):.4f}"
    given, by, told = ask(client, ALIKE)
    assert (given, by) == (text, "semantic-cache")
    assert told is not None
    assert float(told) == pytest.approx(float(expected), abs=2e-4)
    assert ask(client, OTHER)[1] is None
    assert ask(client, QUESTION)[1:] == ("exact-cache", None)
    assert ask(client, "b " * MAX_POSITIONS)[1] is None  # too long for a vector, and not for the model


def report(server: RunningServer, pairs: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trireme", "gateway", "cache-report", str(pairs), "--url", server.url]
    deployment = ["--deployment", str(server.folder / "deployment.yaml")]
    return subprocess.run([*command, *deployment, *options], capture_output=True, text=True, check=False, timeout=120)


def test_the_report_counts_the_hits_of_the_server_s_own_vectors(
    server: RunningServer, weights: Weights, tmp_path: Path
) -> None:
    labelled = [(QUESTION, ALIKE, True), (QUESTION, "what is the capital of malta?", False), (QUESTION, OTHER, False)]
    labelled += [(f"text {number}", f"text {number + 1}", number % 2 == 0) for number in range(4)]
    file = tmp_path / "pairs.jsonl"
    file.write_text(
        "\n".join(
            json.dumps({"question": one, "other": other, "has_same_answer": same}) for one, other, same in labelled
        )
    )
    done = report(server, file, "--json", "--lowest", "0.9", "--step", "0.02", "--worst", "2")
    assert done.returncode == 0, done.stderr
    told: Any = json.loads(done.stdout)
    found = [(similarity(weights, one, other), same) for one, other, same in labelled]
    assert (told["model"], told["pairs"], told["pairs_with_the_same_answer"]) == ("small", 7, 3)
    assert [level["least_similarity"] for level in told["levels"]] == [0.9, 0.92, 0.94, 0.96, 0.98, 1]
    for level in told["levels"][:-1]:  # at 1 the last digit decides
        hits = [same for value, same in found if value >= level["least_similarity"]]
        assert (level["hits"], level["wrong_hits"]) == (len(hits), hits.count(False))
    worst = sorted((value for value, same in found if not same), reverse=True)[:2]
    shown = [pair["similarity"] for pair in told["most_alike_with_different_answers"]]
    assert shown == pytest.approx(worst, abs=2e-4)
    table = report(server, file)
    assert table.returncode == 0, table.stderr
    assert "7 pairs: 3 with the same answer, 4 with different ones" in table.stdout
    assert "wrong hits" in table.stdout


def test_a_report_of_nothing_and_of_another_model_is_refused(server: RunningServer, tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text("{}")
    assert (done := report(server, file)).returncode == 2, done
    assert "pairs.jsonl:1" in done.stderr
    file.write_text('{"question": "a", "other": "b", "has_same_answer": true}')
    assert (done := report(server, file, "--model", "large")).returncode == 2, done
    assert "there are small" in done.stderr
    assert (done := report(server, file, "--step", "0.001", "--lowest", "-1")).returncode == 2, done
    assert "--step" in done.stderr
