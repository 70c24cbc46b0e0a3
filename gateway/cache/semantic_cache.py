# SPDX-License-Identifier: Apache-2.0
"""The kept answers by meaning: a question that is alike to one that was answered gets that one's answer.

Some of these answers are wrong: `trireme gateway cache-report` says how many, on questions that somebody has labelled.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import numpy as np

from clients.openai_api.asked import Asked
from ensemble_configs.render.embedding_tensors import TEXTS
from ensemble_configs.spec.gateway_spec import SemanticCacheSpec
from gateway.cache.kept_answer import KeptAnswer
from gateway.cache.question import Question, question_of
from gateway.cache.similar_questions import SimilarQuestions, Vector
from gateway.gateway_metrics import GatewayMetrics
from trireme.base.errors import RequestError, ServingError

_log = logging.getLogger("trireme.gateway")

Embed = Callable[[str], Awaitable[bytes]]  # a text to the FP32 values of its vector
Find = Callable[[str], Awaitable[KeptAnswer | None]]  # a kept answer by its name

_MOST_TRIES = 4  # of one lookup: answers that are gone, though their questions are remembered


class SimilarAnswer(NamedTuple):
    """The answer to a question that is alike, and how much."""

    answer: KeptAnswer
    similarity: float


class AskedBefore(NamedTuple):
    """The outcome of a lookup.

    Attributes:
        vector: of the question, to remember it by; None: nobody could tell it.
        found: None: no question that is alike has an answer.
    """

    vector: Vector | None
    found: SimilarAnswer | None


class SemanticCache:
    """The questions that have kept answers.

    Args:
        embed: makes the vector of a text.
        metrics: count what is found.
    """

    def __init__(self, spec: SemanticCacheSpec, embed: Embed, metrics: GatewayMetrics) -> None:
        self._spec, self._embed, self._metrics = spec, embed, metrics
        self._questions = SimilarQuestions(max_questions=spec.max_questions)
        self._is_told = False

    def is_for(self, tenant: str) -> bool:
        """Return whether callers of a tenant get answers to other questions. Args: `tenant`: "": they have none."""
        return self._spec.tenants is None or tenant in self._spec.tenants

    def question(self, asked: Asked, *, model: str, owner: str) -> Question | None:
        """Return the question of what is asked; None: its answer is given to no other question."""
        return question_of(asked, model=model, owner=owner)

    async def look_up(self, question: Question, *, model: str, find: Find) -> AskedBefore:
        """Return the answer to a question that is alike, where there is one.

        Args:
            model: that is asked.
            find: returns kept answers.
        """
        vector = await self._vector(question.text)
        if vector is None:
            self._metrics.note_similar(model, "failed")
            return AskedBefore(None, None)
        found = None
        for _ in range(_MOST_TRIES):
            similar = self._questions.find(question.scope, vector, least_similarity=self._spec.least_similarity)
            if similar is None:
                break
            answer = await find(similar.name)
            if answer is not None:
                found = SimilarAnswer(answer, similar.similarity)
                break
            self._questions.drop(question.scope, similar.name)
        self._metrics.note_similar(model, "miss" if found is None else "hit")
        return AskedBefore(vector, found)

    def remember(self, question: Question, vector: Vector, name: str) -> None:
        """Remember a question by its vector and the name of its answer."""
        self._questions.add(question.scope, vector, name)

    async def _vector(self, text: str) -> Vector | None:
        try:
            async with asyncio.timeout(self._spec.wait_ms / 1000):
                values = await self._embed(text)
        except (ServingError, TimeoutError) as exc:
            if not (isinstance(exc, RequestError) and exc.facts.get("field") == TEXTS):  # such as one that is too long
                self._tell(exc)
            return None
        self._is_told = False
        return np.frombuffer(values, np.float32)

    def _tell(self, exc: Exception) -> None:
        """Say that the embedding model does not answer, once until it does."""
        if not self._is_told:
            why = exc.message if isinstance(exc, ServingError) else f"nothing within {self._spec.wait_ms:g} ms"
            _log.warning("%s cannot be asked whether questions are alike: %s", self._spec.embedding_model, why)
        self._is_told = True
