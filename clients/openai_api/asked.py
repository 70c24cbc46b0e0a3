# SPDX-License-Identifier: Apache-2.0
"""The question of one body, at whichever endpoint: requests of the serving contract, and the form of the answer."""

import enum
from typing import Any

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.tool_calls.callable_tools import CallableTools


class Endpoint(enum.StrEnum):
    """An endpoint that a model answers, by its path."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"  # Anthropic's
    EMBEDDINGS = "/v1/embeddings"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The requests of one body: one for each prompt, each of `n` sequences.

    Attributes:
        model: as the body names it; None: it names none.
        includes_usage: a stream ends with the tokens that it took.
        tools: that the model may call.
        strict_tools: names of those whose arguments must fit their schemas.
        max_calls: of them; None: any number.
        tool_choice: as chats have it, where the answer must be calls; None: it need not.
        prefixes: texts before the answers, one for each request; empty: none.
        session: name of the conversation that the body belongs to; "": it names none.
        log_probs: the answer tells the log probability of each of its tokens.
        guide_param: name of the body's field that a guide is made of.
        echo: fields that the answer repeats.
    """

    endpoint: Endpoint
    requests: tuple[GenerateRequest, ...]
    model: str | None = None
    n: int = 1
    is_streaming: bool = False
    includes_usage: bool = False
    tools: CallableTools = {}
    strict_tools: frozenset[str] = frozenset()
    max_calls: int | None = None
    tool_choice: Any = None
    prefixes: tuple[str, ...] = ()
    session: str = ""
    log_probs: bool = False
    guide_param: str = "response_format"
    echo: dict[str, Any] = {}

    @property
    def is_chat(self) -> bool:
        """Return whether the answer is a message."""
        return self.endpoint is not Endpoint.COMPLETIONS

    @property
    def num_choices(self) -> int:
        """Return the number of texts in the answer."""
        return len(self.requests) * self.n
