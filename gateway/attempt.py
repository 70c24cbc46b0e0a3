# SPDX-License-Identifier: Apache-2.0
"""An attempt at an answer: by the model that was asked for, or by whatever stands in for it."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Protocol

import msgspec

from clients.openai_api.answer_deltas import AnswerDeltas, Piece, Usage
from clients.openai_api.asked import Asked
from gateway.generation import Chunks, Generation
from gateway.served_models import ServedModel
from gateway.tokens.loaded_tokenizers import text_decoder, token_texts
from gateway.tokens.stop_sequence import StopSequence, tells_stop_sequence
from serving.text.detokenization import TextDecoder
from serving.text.token_texts import TokenTexts
from trireme.base.errors import RequestError

Pieces = AsyncGenerator[Piece, None]


class Attempt(Protocol):
    """An attempt at one answer."""

    @property
    def is_kept(self) -> bool:
        """Return whether the answer was there, and nothing was made for it."""
        ...

    @property
    def similarity(self) -> float | None:
        """Return how alike the question is whose answer was kept; None: it is the same, or nothing was kept."""
        ...

    @property
    def usage(self) -> Usage:
        """Return the tokens so far."""
        ...

    @property
    def release(self) -> int | None:
        """Return the release that answers; None: it has not told, or has none."""
        ...

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's words for how the choices have ended, each once; "": none has."""
        ...

    @property
    def has_moved(self) -> bool:
        """Return whether the answer has gone on at another server: its draws began anew."""
        ...

    def pieces(self, *, deadline_s: float) -> Pieces:
        """Yield the pieces of the answer; closing the iterator cancels what makes them.

        Args:
            deadline_s: of the answer, by the clock of the event loop.

        Raises:
            ServingError: the attempt has failed.
        """
        ...

    def note_slow(self) -> None:
        """Note that the attempt was given up, for it had not begun in time."""
        ...


class Answerer(Protocol):
    """A model that may answer."""

    @property
    def name(self) -> str:
        """Return the name by which answers and the ledger tell of it."""
        ...

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost, in billionths of a US dollar."""
        ...

    def attempt(self, asked: Asked, *, is_streaming: bool) -> Attempt:
        """Return an attempt that has not begun.

        Args:
            is_streaming: pieces come as they are made.

        Raises:
            ApiError: it cannot do what is asked.
        """
        ...


class ModelAnswerer:
    """A model of the deployment, or one release of it. Args: `generation` asks its servers."""

    def __init__(self, model: ServedModel, generation: Generation) -> None:
        self._model, self._generation = model, generation

    @property
    def name(self) -> str:
        """Return the model's name."""
        return self._model.name

    def on(self, model: ServedModel) -> "ModelAnswerer":
        """Return what answers as one release of the model."""
        return ModelAnswerer(model, self._generation)

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost, in billionths of a US dollar."""
        return self._model.cost_nano_usd(usage)

    def attempt(self, asked: Asked, *, is_streaming: bool) -> "ModelAttempt":
        """Return an attempt that has not begun.

        Raises:
            ApiError: there are tools, and the model writes calls in no way that is read here.
        """
        # A model that is not decoupled has one response: its answer begins with its end.
        changes: dict[str, object] = {
            "stream": is_streaming and (asked.is_streaming or self._model.is_decoupled),
            "return_release": True,
        }
        if not self._model.has_admission:
            changes |= {"tenant": None}
        if tells_stop_sequence(asked) and self._model.tokenizer is not None:
            changes |= {"return_token_ids": True}
        found, unguided = _with(asked, changes), None
        if (guide := self._model.guide(asked)) is not None:
            unguided = found if asked.tool_choice is None else None
            changes = {"guided_decoding_guide_type": guide.guide_type, "guided_decoding_guide": guide.guide}
            found = _with(found, changes)
        return ModelAttempt(found, self._model, self._generation, unguided=unguided)


def _with(asked: Asked, changes: Mapping[str, object]) -> Asked:
    """Return what is asked with requests that differ in some fields."""
    requests = tuple(msgspec.structs.replace(request, **changes) for request in asked.requests)
    return msgspec.structs.replace(asked, requests=requests)


class ModelAttempt:
    """An attempt by a model of the deployment.

    Args:
        unguided: the same without a guide, for an engine that has none; None: it is asked as it is, or not at all.
    """

    def __init__(
        self, asked: Asked, model: ServedModel, generation: Generation, *, unguided: Asked | None = None
    ) -> None:
        self._asked, self._model, self._generation, self._unguided = asked, model, generation, unguided
        self._token_texts: TokenTexts | None = None
        self._deltas = AnswerDeltas(asked, [model.reader(asked) for _ in range(asked.num_choices)], self._bytes_of)

    is_kept = has_moved = False
    similarity: float | None = None

    def note_slow(self) -> None:
        """Note nothing: a server may have been slow for its queue."""

    @property
    def usage(self) -> Usage:
        """Return the tokens so far."""
        return self._deltas.usage

    @property
    def release(self) -> int | None:
        """Return the release that answers; None: no chunk has told."""
        return self._deltas.release

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's words for how the choices have ended."""
        return self._deltas.finish_reason

    async def pieces(self, *, deadline_s: float) -> Pieces:
        """Yield the pieces of the answer; closing the iterator cancels the requests on the server.

        Args:
            deadline_s: of the answer, by the clock of the event loop.

        Raises:
            ServingError: one of the requests failed; the others are cancelled.
        """
        if self._asked.log_probs and self._model.tokenizer is not None:
            self._token_texts = await asyncio.to_thread(token_texts, self._model.tokenizer)
        decoder: TextDecoder | None = None
        if tells_stop_sequence(self._asked) and self._model.tokenizer is not None:
            decoder = await asyncio.to_thread(text_decoder, self._model.tokenizer)
        stop: StopSequence | None = None
        is_sure = self._unguided is None
        answer = self._asked_for(self._asked, deadline_s) if is_sure else self._guided_chunks(deadline_s)
        async with contextlib.aclosing(answer) as chunks:
            async for index, chunk in chunks:
                self.has_moved = self.has_moved or chunk.has_moved
                piece = self._deltas.of(index, chunk)
                if decoder is not None:
                    # Not before a chunk has come: the server refuses strings that are none.
                    stop = stop or StopSequence(decoder, self._asked.requests[0].stop_words or ())
                    piece = piece._replace(stop_string=stop.of(chunk))
                yield piece

    async def _guided_chunks(self, deadline_s: float) -> Chunks:
        """Yield the chunks of a guided answer; of an engine that takes no guides at all, of an unguided one."""
        try:
            async with contextlib.aclosing(self._asked_for(self._asked, deadline_s)) as chunks:
                async for found in chunks:
                    yield found
        except RequestError as exc:
            if self._unguided is None or exc.facts.get("field") != "guided_decoding_guide_type":
                raise
        else:
            return
        async with contextlib.aclosing(self._asked_for(self._unguided, deadline_s)) as chunks:
            async for found in chunks:
                yield found

    def _asked_for(self, asked: Asked, deadline_s: float) -> Chunks:
        return self._generation.chunks(asked, self._model, deadline_s=deadline_s)

    def _bytes_of(self, token_id: int) -> bytes:
        return b"" if self._token_texts is None else self._token_texts.bytes_of(token_id)
