# SPDX-License-Identifier: Apache-2.0
"""The command `trireme gateway cache-report`: how many wrong answers a semantic cache would give."""

import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import typer
from numpy.typing import NDArray

from clients.access import Access
from clients.access_options import with_access
from clients.embedding_messages import EmbeddingRequest
from clients.streaming import AsyncTritonClient
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment
from ensemble_configs.spec.engine.embedding_spec import EmbeddingModelSpec
from gateway.cache.wrong_hits import LabelledPair, Level, levels, read_pairs, similarities
from trireme.base.errors import RequestError, SpecError
from trireme.base.text_tables import TextTable, print_tables

_ASK_S = 600.0  # for a part of the questions
_MOST_LEVELS = 1000


class WrongPair(msgspec.Struct, frozen=True):
    """A pair with different answers."""

    question: str
    other: str
    similarity: float
    kind: str


class CacheReport(msgspec.Struct, frozen=True):
    """The report of an embedding model on labelled pairs."""

    model: str
    pairs: int
    pairs_with_the_same_answer: int
    levels: list[Level]
    most_alike_with_different_answers: list[WrongPair]


@with_access
def cache_report(
    pairs: Annotated[
        Path,
        typer.Argument(
            help="File of labelled pairs, a JSON object in each line: question, other, has_same_answer, and kind if "
            "you like."
        ),
    ],
    *,
    deployment: Annotated[
        Path, typer.Option(help="Deployment file of the server.", show_default="the demo model's, demo_cpu.yaml")
    ] = DEFAULT_DEPLOYMENT,
    model: Annotated[
        str | None,
        typer.Option(
            help="Embedding model to ask.", show_default="the one of gateway.answer_cache.semantic, or the only one"
        ),
    ] = None,
    url: Annotated[str, typer.Option(help="host:port of Triton's gRPC endpoint; grpcs://host:port: with TLS.")] = (
        "localhost:8001"
    ),
    lowest: Annotated[float, typer.Option(help="Lowest similarity to report.", min=-1, max=1)] = 0.7,
    step: Annotated[float, typer.Option(help="From one similarity to the next.", min=0.001, max=1)] = 0.025,
    num_worst: Annotated[
        int, typer.Option("--worst", help="Pairs with different answers to show, the most alike first.", min=0)
    ] = 5,
    access: Access,
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")] = False,
) -> None:
    """Report how many wrong answers a semantic cache would give, by the similarity that it asks for.

    The questions are sent to the embedding model of a running server. A pair is a hit where its questions are at least
    so alike; the hit is wrong where the pair has different answers. What is reported holds for this model and these
    pairs: take questions of your own users.

    \b
    Examples:
      trireme gateway cache-report pairs.jsonl --deployment mine.yaml
      trireme gateway cache-report pairs.jsonl --deployment mine.yaml --model embed --json

    \b
    Exit codes: 0 reported; 1 the server is away; 2 the file, the deployment or an option is wrong.
    """
    labelled, values = read_pairs(pairs), _values(lowest, step)
    spec = _model_of(load_deployment(deployment), model)
    found = asyncio.run(similarities_by_server(labelled, spec, url, access))
    report = report_of(labelled, found, values, model=spec.name, num_worst=num_worst)
    if is_json:
        typer.echo(msgspec.json.encode(report).decode())
    else:
        print_tables(_tables(report, labelled, found))


async def similarities_by_server(
    pairs: Sequence[LabelledPair], spec: EmbeddingModelSpec, url: str, access: Access
) -> NDArray[np.float64]:
    """Return the similarity of each pair, by the embedding model of a running server.

    Raises:
        ServingError: a question has too many tokens, or the server is away.
    """
    texts = [*(pair.question for pair in pairs), *(pair.other for pair in pairs)]
    vectors = await _vectors(texts, spec, url, access)
    return similarities(vectors[: len(pairs)], vectors[len(pairs) :])


def report_of(
    pairs: Sequence[LabelledPair],
    found: NDArray[np.float64],
    least_similarities: Sequence[float],
    *,
    model: str,
    num_worst: int,
) -> CacheReport:
    """Return the report of pairs. Args: `found`: the similarity of each."""
    return CacheReport(
        model=model,
        pairs=len(pairs),
        pairs_with_the_same_answer=sum(pair.has_same_answer for pair in pairs),
        levels=levels(found, pairs, least_similarities),
        most_alike_with_different_answers=_worst(found, pairs, num_worst),
    )


def _model_of(deployment: DeploymentSpec, name: str | None) -> EmbeddingModelSpec:
    models = {model.name: model for model in deployment.embedding_models}
    cache = deployment.gateway.answer_cache
    if name is None and cache is not None and cache.semantic is not None:
        name = cache.semantic.embedding_model
    if name is None and len(models) == 1:
        [name] = models
    if name is None or name not in models:
        known = ", ".join(models) or "none"
        raise SpecError(
            f"--model must name one of the deployment's embedding_models, got {name}; there are {known}",
            field="model",
            value=name,
        )
    return models[name]


def _values(lowest: float, step: float) -> list[float]:
    if (1 - lowest) / step > _MOST_LEVELS:
        raise RequestError(f"--step {step:g} makes more than {_MOST_LEVELS} rows; raise it", field="step", value=step)
    number = int((1 - lowest) / step + 1e-9)
    return [round(lowest + index * step, 6) for index in range(number + 1)]


async def _vectors(texts: Sequence[str], spec: EmbeddingModelSpec, url: str, access: Access) -> NDArray[np.float32]:
    """Return the vector of each text, ``[num_texts, width]``."""
    rows: list[bytes] = []
    async with AsyncTritonClient(url, access=access) as client:
        for begin in range(0, len(texts), spec.max_batch_size):
            part = EmbeddingRequest(texts=tuple(texts[begin : begin + spec.max_batch_size]))
            rows += (await client.embed(part, model=spec.name, timeout_s=_ASK_S)).vectors
    return np.frombuffer(b"".join(rows), np.float32).reshape(len(texts), -1)


def _worst(found: NDArray[np.float64], pairs: Sequence[LabelledPair], number: int) -> list[WrongPair]:
    wrong = [
        WrongPair(pair.question, pair.other, round(float(similarity), 4), pair.kind)
        for pair, similarity in zip(pairs, found, strict=True)
        if not pair.has_same_answer
    ]
    return sorted(wrong, key=lambda each: -each.similarity)[:number]


def _tables(report: CacheReport, pairs: Sequence[LabelledPair], found: NDArray[np.float64]) -> list[TextTable]:
    num_same, worst = report.pairs_with_the_same_answer, report.most_alike_with_different_answers
    headers = ("least_similarity", "hits", "wrong hits", "wrong, % of hits", "95 %", "found, % of same", "taken, % of "
               "different")  # fmt: skip
    rows = [
        (
            f"{each.least_similarity:g}",
            str(each.hits),
            str(each.wrong_hits),
            _percent(each.wrong_share),
            ""
            if each.wrong_share_interval is None
            else " to ".join(_percent(end) for end in each.wrong_share_interval),
            _percent(each.found_share),
            _percent(each.wrong_share_of_different),
        )
        for each in report.levels
    ]
    note = f"{len(pairs)} pairs: {num_same} with the same answer, {len(pairs) - num_same} with different ones"
    tables = [TextTable("Hits by similarity", headers, tuple(rows), (note,))]
    kinds = sorted({(pair.kind, pair.has_same_answer) for pair in pairs}, key=lambda kind: (not kind[1], kind[0]))
    if len(kinds) > 2:
        tables.append(_by_kind(kinds, pairs, found))
    if worst:
        shown = tuple((each.question, each.other, each.kind, f"{each.similarity:.3f}") for each in worst)
        tables.append(
            TextTable(
                "The most alike with different answers",
                ("question", "other", "kind", "similarity"),
                shown,
                left=("other", "kind"),
            )
        )
    return tables


def _by_kind(kinds: Sequence[tuple[str, bool]], pairs: Sequence[LabelledPair], found: NDArray[np.float64]) -> TextTable:
    rows = []
    for kind, is_same in kinds:
        of_kind = [
            float(similarity)
            for pair, similarity in zip(pairs, found, strict=True)
            if (pair.kind, pair.has_same_answer) == (kind, is_same)
        ]
        spread = (min(of_kind), statistics.median(of_kind), max(of_kind))
        rows.append((kind, "same" if is_same else "different", str(len(of_kind)), *(f"{each:.3f}" for each in spread)))
    headers = ("kind", "answers", "pairs", "least", "median", "most")
    return TextTable("Similarity by kind of pair", headers, tuple(rows), left=headers[:2])


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"
