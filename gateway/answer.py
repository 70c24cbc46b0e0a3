# SPDX-License-Identifier: Apache-2.0
"""An answer: what was asked, and the pieces of it by the first of a chain of models that can."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Sequence
from typing import NamedTuple

from clients.openai_api.answer_deltas import Piece, Usage
from clients.openai_api.api_error import ApiError, api_error
from clients.openai_api.asked import Asked, Endpoint
from gateway.attempt import Answerer, Attempt, Pieces
from gateway.limits.answer_estimate import estimate_of
from gateway.servers.failures import NO_SERVER, may_do_better
from trireme.base.errors import ServerError, ServingError, Unavailable

_log = logging.getLogger("trireme.gateway")


class Step(NamedTuple):
    """A step of a chain.

    Attributes:
        first_token_s: how long the step may take to begin its answer, before the next one is asked; None: any time.
    """

    answerer: Answerer
    first_token_s: float | None = None


class Tier(NamedTuple):
    """The tier that a request names.

    Attributes:
        name: that callers write; "": the request names a model.
        large: its large model; None: there is no tier.
    """

    name: str = ""
    large: Answerer | None = None


NO_TIER = Tier()


class Answer:
    """An answer that has not begun yet, or runs.

    Args:
        chain: the model that was asked for, and what stands in for it, in this order.
        timeout_s: of the whole answer, whoever gives it.

    Attributes:
        id: without the prefix of its kind.
        asked: what was asked for.
        tier: that was asked for; "": a model was.

    Raises:
        ApiError: the model that was asked for cannot do what is asked.
    """

    def __init__(self, asked: Asked, chain: Sequence[Step], tier: Tier = NO_TIER, *, timeout_s: float) -> None:
        self.id = secrets.token_hex(12)
        self.asked, self.tier, self._large = asked, tier.name, tier.large
        self._chain, self._timeout_s = chain, timeout_s
        self._step = chain[0]
        # Nobody can tell when an answer that comes whole has begun: where that matters, it streams to the gateway.
        self._is_streaming = asked.is_streaming or any(step.first_token_s is not None for step in chain)
        self._attempt = self._begin(chain[0])

    @property
    def endpoint(self) -> Endpoint:
        """Return where the answer was asked for."""
        return self.asked.endpoint

    @property
    def is_streaming(self) -> bool:
        """Return whether the caller has each piece as it comes."""
        return self.asked.is_streaming

    @property
    def estimate(self) -> Usage:
        """Return the tokens that the answer may take, before a tokenizer has seen the prompt."""
        return estimate_of(self.asked)

    @property
    def model(self) -> str:
        """Return the name of the model that was asked for."""
        return self._chain[0].answerer.name

    @property
    def answered_by(self) -> str:
        """Return the name of the model that answers, so far."""
        return self._step.answerer.name

    @property
    def is_kept(self) -> bool:
        """Return whether the answer was there, and nothing was made for it."""
        return self._attempt.is_kept

    @property
    def similarity(self) -> float | None:
        """Return how alike the question is whose answer was kept; None: it is the same, or nothing was kept."""
        return self._attempt.similarity

    @property
    def usage(self) -> Usage:
        """Return the tokens so far, as the caller is told."""
        return self._attempt.usage

    @property
    def made(self) -> Usage:
        """Return the tokens so far that were computed for this answer, which are those that count."""
        return Usage() if self._attempt.is_kept else self._attempt.usage

    @property
    def release(self) -> int | None:
        """Return the release that answers; None: it has not told, or has none."""
        return self._attempt.release

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's words for how the choices have ended, each once; "": none has."""
        return self._attempt.finish_reason

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost by the prices of the model that answers, in billionths of a US dollar."""
        return self._step.answerer.cost_nano_usd(usage)

    def saved_nano_usd(self) -> int:
        """Return what the answer would have cost more, had it been made, or made by the large model of its tier."""
        if self._large is None and not self.is_kept:
            return 0
        dearer = self._large or self._step.answerer
        return max(0, dearer.cost_nano_usd(self.usage) - self.cost_nano_usd(self.made))

    def most_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost at most, whichever model answers."""
        return max(step.answerer.cost_nano_usd(usage) for step in self._chain)

    def has_asked_nobody(self, failure: ServingError) -> bool:
        """Return whether a failure says that no server was asked, so that nothing was made anywhere."""
        is_one = len(self._chain) == len(self.asked.requests) == 1
        return is_one and failure.facts.get("reason") == NO_SERVER

    def broken(self, cause: Exception) -> ApiError:
        """Return the error with which the answer breaks off."""
        return broken(cause, self.asked)

    async def pieces(self) -> Pieces:
        """Yield the pieces of the answer, by the first step of the chain that begins one.

        Raises:
            ServingError: no step could; it is that of the model which was asked for. Or a step failed that had begun.
        """
        first: ServingError | None = None
        own, deadline_s = self._attempt, asyncio.get_running_loop().time() + self._timeout_s
        for step in self._chain:
            if step is not self._step and not self._may_stand_in(step):
                continue
            has_begun = False
            try:
                async with contextlib.aclosing(self._attempt.pieces(deadline_s=deadline_s)) as pieces:
                    if (first_piece := await _first(pieces, step, self._attempt)) is not None:
                        has_begun = True
                        yield first_piece
                    async for piece in pieces:
                        yield piece
                    _check_begun(has_begun=has_begun)
            except ServingError as exc:
                if has_begun or (first is None and not may_do_better(exc)):
                    raise
                if first is not None:
                    _log.warning("%s does not answer in place of %s: %s", self.answered_by, self.model, exc.message)
                first = first or exc
            else:
                return
        assert first is not None
        self._step, self._attempt = self._chain[0], own
        raise first

    def _may_stand_in(self, step: Step) -> bool:
        """Return whether a step can do what is asked; it is the step that answers, then."""
        try:
            self._attempt = self._begin(step)
        except ApiError as exc:
            _log.warning("%s cannot answer in place of %s: %s", step.answerer.name, self.model, exc.message)
            return False
        self._step = step
        _log.warning("%s is asked in place of %s", step.answerer.name, self.model)
        return True

    def _begin(self, step: Step) -> Attempt:
        return step.answerer.attempt(self.asked, is_streaming=self._is_streaming)


def broken(cause: Exception, asked: Asked) -> ApiError:
    """Return the error with which an answer breaks off that has begun."""
    if isinstance(cause, ServingError):
        return api_error(cause, is_chat=asked.is_chat, guide_param=asked.guide_param)
    return ApiError("the gateway failed; the reason is in its log", code="server_error", status=500)


def _check_begun(*, has_begun: bool) -> None:
    if not has_begun:
        raise ServerError("the server ended an answer that it had not begun")


async def _first(pieces: Pieces, step: Step, attempt: Attempt) -> Piece | None:
    """Return the first piece of an attempt; None: it has ended without one.

    Raises:
        Unavailable: it took longer than the step may.
    """
    try:
        async with asyncio.timeout(step.first_token_s):
            return await anext(pieces, None)
    except TimeoutError as exc:
        attempt.note_slow()
        raise Unavailable(
            f"{step.answerer.name} has not begun its answer within {step.first_token_s:g} s; try again",
            reason="first_token",
        ) from exc
