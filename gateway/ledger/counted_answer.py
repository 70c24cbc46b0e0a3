# SPDX-License-Identifier: Apache-2.0
"""An answer as limits, the ledger and the metrics see it, whatever it is made of."""

from typing import Protocol

from clients.openai_api.answer_deltas import Usage
from clients.openai_api.api_error import ApiError
from clients.openai_api.asked import Endpoint
from trireme.base.errors import ServingError


class CountedAnswer(Protocol):
    """An answer that has not begun yet, or runs."""

    @property
    def id(self) -> str:
        """Return its name, without the prefix of its kind."""
        ...

    @property
    def endpoint(self) -> Endpoint:
        """Return where it was asked for."""
        ...

    @property
    def tier(self) -> str:
        """Return the tier that was asked for; "": a model was."""
        ...

    @property
    def model(self) -> str:
        """Return the name of the model that was asked for."""
        ...

    @property
    def answered_by(self) -> str:
        """Return the name of the model that answers, so far."""
        ...

    @property
    def is_kept(self) -> bool:
        """Return whether the answer was there, and nothing was made for it."""
        ...

    @property
    def similarity(self) -> float | None:
        """Return how alike the question is whose answer was kept; None: it is the same, or nothing was kept."""
        ...

    @property
    def is_streaming(self) -> bool:
        """Return whether its caller has each piece as it comes."""
        ...

    @property
    def estimate(self) -> Usage:
        """Return the tokens that it may take, before a tokenizer has seen what is asked."""
        ...

    @property
    def made(self) -> Usage:
        """Return the tokens so far that were computed for it, which are those that count."""
        ...

    @property
    def release(self) -> int | None:
        """Return the release that answers; None: it has not told, or has none."""
        ...

    @property
    def finish_reason(self) -> str:
        """Return OpenAI's words for how it has ended; "": it has not, or there is no such word."""
        ...

    def cost_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost by the prices of the model that answers, in billionths of a US dollar."""
        ...

    def most_nano_usd(self, usage: Usage) -> int:
        """Return what tokens cost at most, whichever model answers."""
        ...

    def saved_nano_usd(self) -> int:
        """Return what the answer would have cost more, had it been made, or made by the large model of its tier."""
        ...

    def has_asked_nobody(self, failure: ServingError) -> bool:
        """Return whether a failure says that no server was asked, so that nothing was made anywhere."""
        ...

    def broken(self, cause: Exception) -> ApiError:
        """Return the error that its caller is told of."""
        ...
