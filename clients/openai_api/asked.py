# SPDX-License-Identifier: Apache-2.0
"""The question of one body, at whichever endpoint: requests of the serving contract, and the form of the answer."""

import enum
from typing import Any

import msgspec

from clients.infer_messages import GenerateRequest


class Endpoint(enum.StrEnum):
    """An endpoint that answers with text, by its path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one body: one for each prompt, each of `n` sequences.

    Attributes:
        model: as the body names it; None: it names none.
        includes_usage: a stream ends with the tokens that it took.
        offers_tools: what the model writes may be calls of tools.
        has_one_call: no more than one of them.
        echo: fields that the answer repeats.
    """

    endpoint: Endpoint
    requests: tuple[GenerateRequest, ...]
    model: str | None = None
    n: int = 1
    is_streaming: bool = False
    includes_usage: bool = False
    offers_tools: bool = False
    has_one_call: bool = False
    echo: dict[str, Any] = {}

    @property
    def is_chat(self) -> bool:
        """Return whether the answer is a message."""
        return self.endpoint is not Endpoint.COMPLETIONS
