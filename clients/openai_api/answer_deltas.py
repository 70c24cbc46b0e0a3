# SPDX-License-Identifier: Apache-2.0
"""The chunks of an answer as pieces of what OpenAI's answers are made of: content, reasoning, calls of tools."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from clients.infer_messages import GenerateChunk
from clients.openai_api.asked import Asked, Endpoint
from clients.openai_api.log_probs import TokenLogProb
from clients.openai_api.tool_calls.answer_reader import AnswerReader
from clients.openai_api.tool_calls.deltas import Content, Delta
from trireme.base.errors import ServerError

_REASONS = {"stop_string": "stop"}  # OpenAI does not tell them apart; Anthropic does


class Usage(NamedTuple):
    """The tokens as the server counted them; each prompt once, however many answers it has.

    Attributes:
        cached_tokens: of the prompts', those that the KV cache had; None: the engine does not tell.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int | None = None

    @property
    def total_tokens(self) -> int:
        """Return all tokens."""
        return self.prompt_tokens + self.completion_tokens

    def fields(self) -> dict[str, object]:
        """Return the object of an answer."""
        found: dict[str, object] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
        }
        if self.cached_tokens is not None:
            found["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        return found


class Piece(NamedTuple):
    """The pieces that a chunk brings of one choice.

    Attributes:
        choice: index of the choice among all of the answer.
        finish_reason: OpenAI's word for why the choice ends with this piece, or `stop_string` where the endpoint tells
            that apart; None: it goes on.
        log_probs: of the tokens that have come, where they were asked for.
        stop_string: the one of several that ends the choice; "": none does, or nobody knows which.
    """

    choice: int
    deltas: list[Delta]
    finish_reason: str | None
    log_probs: tuple[TokenLogProb, ...] = ()
    stop_string: str = ""


class AnswerDeltas:
    """The readers of all choices of one answer.

    Args:
        readers: of each choice; None: all text is content.
        bytes_of: returns the bytes of a token, for log probabilities.

    Attributes:
        release: that answers, where it was asked for; None: no chunk has come.
    """

    def __init__(
        self,
        asked: Asked,
        readers: Sequence[AnswerReader] | None = None,
        bytes_of: Callable[[int], bytes] = lambda _: b"",
    ) -> None:
        self._n, self._bytes_of, self._tells_log_probs = asked.n, bytes_of, asked.log_probs
        self._reasons: Mapping[str, str] = {} if asked.endpoint is Endpoint.MESSAGES else _REASONS
        self._prefixes = {
            index: asked.prefixes[index // asked.n] for index in range(asked.num_choices) if asked.prefixes
        }
        self._readers = readers or [AnswerReader() for _ in range(asked.num_choices)]
        self._num_input: dict[int, int] = {}  # by request
        self._num_output = 0
        self._num_cached: dict[int, int] = {}
        self._finish_reasons: dict[str, None] = {}
        self.release: int | None = None

    @property
    def usage(self) -> Usage:
        """Return the tokens so far."""
        cached = sum(self._num_cached.values()) if self._num_cached else None
        return Usage(sum(self._num_input.values()), self._num_output, cached)

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's words for how the choices have ended, each once; "": none has."""
        return ",".join(self._finish_reasons)

    def of(self, request: int, chunk: GenerateChunk) -> Piece:
        """Return what a chunk brings.

        Args:
            request: index of the chunk's request among those that were asked.

        Raises:
            ServerError: there is not a log probability for each token, where they were asked for.
        """
        if chunk.num_input_tokens is not None:
            self._num_input.setdefault(request, chunk.num_input_tokens)
        self._num_output += _num_tokens(chunk)
        if chunk.num_cached_tokens is not None:  # of several choices, the first finds what was there before all
            self._num_cached[request] = min(
                chunk.num_cached_tokens, self._num_cached.get(request, chunk.num_cached_tokens)
            )
        if chunk.release is not None:
            self.release = chunk.release
        index = request * self._n + (chunk.sequence_index or 0)
        reader = self._readers[index]
        deltas = reader.read(chunk.text) if chunk.text else []
        told = self._log_probs(chunk) if self._tells_log_probs else ()
        if index in self._prefixes:
            deltas = [Content(self._prefixes.pop(index)), *deltas]
        if not chunk.finish_reason:
            return Piece(index, deltas, None, told)
        deltas = [*deltas, *reader.end()]
        reason = reader.finish_reason(self._reasons.get(chunk.finish_reason, chunk.finish_reason))
        self._finish_reasons[_REASONS.get(reason, reason)] = None
        return Piece(index, deltas, reason, told)

    def _log_probs(self, chunk: GenerateChunk) -> tuple[TokenLogProb, ...]:
        """Return the tokens of a chunk that have a text; the one that ends the answer has none."""
        if chunk.token_ids is None or chunk.log_probs is None or len(chunk.token_ids) != len(chunk.log_probs):
            raise ServerError("the server did not send a log probability for each token; it may be an older one")
        pairs = zip(chunk.token_ids, chunk.log_probs, strict=True)
        found = (TokenLogProb(self._bytes_of(token_id), log_prob) for token_id, log_prob in pairs)
        return tuple(token for token in found if token.data)


def _num_tokens(chunk: GenerateChunk) -> int:
    """Return the number of a chunk's tokens: that which it tells, or that of its ids."""
    if chunk.num_output_tokens is not None:
        return chunk.num_output_tokens
    return len(chunk.token_ids or ())
