# SPDX-License-Identifier: Apache-2.0
"""A model whose answers are kept: what was asked before, and has one answer, is answered without it."""

import contextlib
from collections.abc import Sequence

from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.asked import Asked
from gateway.attempt import Answerer, Attempt, Pieces
from gateway.cache.answer_store import MAX_ANSWER_BYTES, AnswerStore
from gateway.cache.kept_answer import KeptAnswer, is_repeatable, is_whole, joined, name_of, packed, unpacked
from gateway.cache.question import Question
from gateway.cache.semantic_cache import SemanticCache
from gateway.cache.similar_questions import Vector
from gateway.gateway_metrics import GatewayMetrics


class AnswerCache:
    """The answers that a gateway keeps, and the newest release of each model, whose answers alone are given again.

    Args:
        store: place of the answers.
        metrics: count what is found there.
        semantic: finds answers to questions that are alike; None: none are given.
    """

    def __init__(self, store: AnswerStore, metrics: GatewayMetrics, semantic: SemanticCache | None = None) -> None:
        self._store, self._metrics = store, metrics
        self.semantic = semantic
        self._releases: dict[str, int] = {}  # that answered last, by model

    async def find(self, name: str, model: str) -> KeptAnswer | None:
        """Return a kept answer, and count the lookup; None: there is none, or another release answers now."""
        found = await self.get(name, model)
        self._metrics.note_lookup(model, is_hit=found is not None)
        return found

    async def get(self, name: str, model: str) -> KeptAnswer | None:
        """Return a kept answer; None: there is none, or another release answers now."""
        data = await self._store.get(name)
        found = None
        if data is not None:
            with contextlib.suppress(ValueError):  # of another version
                found = unpacked(data)
        if found is not None and found.release != self._releases.get(model, found.release):
            found = None
        return found

    def note_release(self, model: str, release: int | None) -> None:
        """Note the release that answers a model now; None: it has not told."""
        if release is not None:
            self._releases[model] = release

    async def keep(self, name: str, answer: KeptAnswer) -> bool:
        """Keep an answer, and return whether it is kept: not if it is too long."""
        data = packed(answer)
        if len(data) > MAX_ANSWER_BYTES:
            return False
        await self._store.put(name, data)
        return True


class CachedAnswerer:
    """A model whose answers to one owner are kept.

    Args:
        owner: a tenant, or a key; nobody gets the answers of another one.
        semantic: finds answers to questions that are alike; None: not for this owner.
    """

    def __init__(
        self, answerer: Answerer, cache: AnswerCache, *, owner: str, semantic: SemanticCache | None = None
    ) -> None:
        self._answerer, self._cache, self._owner, self._semantic = answerer, cache, owner, semantic

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self._answerer.name

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost, in billionths of a US dollar."""
        return self._answerer.cost_nano_usd(usage)

    def attempt(self, asked: Asked, *, is_streaming: bool) -> Attempt:
        """Return an attempt that has not begun.

        Raises:
            ApiError: the model cannot do what is asked.
        """
        attempt = self._answerer.attempt(asked, is_streaming=is_streaming)
        return CachedAttempt(attempt, asked, self._cache, self._semantic, model=self.name, owner=self._owner)


class CachedAttempt:
    """An attempt that a kept answer makes needless, where what is asked has one answer."""

    def __init__(
        self,
        attempt: Attempt,
        asked: Asked,
        cache: AnswerCache,
        semantic: SemanticCache | None = None,
        *,
        model: str,
        owner: str,
    ) -> None:
        self._attempt, self._asked, self._cache, self._model = attempt, asked, cache, model
        self._semantic = semantic
        self._question: Question | None = None
        self._vector: Vector | None = None
        self.similarity: float | None = None
        if semantic is not None:
            self._question = semantic.question(asked, model=model, owner=owner)
        self._name: str | None = None
        if all(map(is_repeatable, asked.requests)):
            self._name = name_of(asked, model=model, owner=owner)
        self._kept: KeptAnswer | None = None

    @property
    def is_kept(self) -> bool:
        """Return whether the answer was there, and nothing was made for it."""
        return self._kept is not None

    @property
    def usage(self) -> Usage:
        """Return the tokens of the answer, of whenever it was made."""
        return self._attempt.usage if self._kept is None else self._kept.usage

    @property
    def release(self) -> int | None:
        """Return the release that answers, or has answered."""
        return self._attempt.release if self._kept is None else self._kept.release

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's words for how the choices have ended."""
        return self._attempt.finish_reason if self._kept is None else self._kept.finish_reason

    @property
    def has_moved(self) -> bool:
        """Return whether the answer has gone on at another server."""
        return self._attempt.has_moved

    def note_slow(self) -> None:
        """Note that the attempt was given up, for it had not begun in time."""
        self._attempt.note_slow()

    async def pieces(self, *, deadline_s: float) -> Pieces:
        """Yield the pieces of the answer: of a kept one few, which come at once.

        Raises:
            ServingError: there was none, and the attempt has failed.
        """
        if self._name is not None:
            self._kept = await self._cache.find(self._name, self._model) or await self._find_similar()
        if self._kept is not None:
            for piece in self._kept.pieces:
                yield piece
            return
        made: list[Piece] = []
        async with contextlib.aclosing(self._attempt.pieces(deadline_s=deadline_s)) as pieces:
            async for piece in pieces:
                if not made:
                    self._cache.note_release(self._model, self.release)
                if self._name is not None or not made:
                    made.append(piece)
                yield piece
        if self._name is not None and self._may_be_kept(made):
            answer = KeptAnswer(joined(made), self.usage, self.finish_reason, self.release)
            if await self._cache.keep(self._name, answer):
                self._remember(self._name)

    async def _find_similar(self) -> KeptAnswer | None:
        """Return the kept answer to a question that is alike; None: there is none."""
        if self._semantic is None or self._question is None:
            return None
        before = await self._semantic.look_up(
            self._question, model=self._model, find=lambda name: self._cache.get(name, self._model)
        )
        self._vector = before.vector
        if before.found is None:
            return None
        self.similarity = before.found.similarity
        return before.found.answer

    def _remember(self, name: str) -> None:
        if self._semantic is not None and self._question is not None and self._vector is not None:
            self._semantic.remember(self._question, self._vector, name)

    def _may_be_kept(self, made: Sequence[Piece]) -> bool:
        # Draws that began anew at another server are not those of the seed.
        is_itself = not self._attempt.has_moved or all(not request.temperature for request in self._asked.requests)
        return is_itself and is_whole(made, self._asked, self.usage)
