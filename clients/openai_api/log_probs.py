# SPDX-License-Identifier: Apache-2.0
"""The log probabilities of an answer's tokens, as OpenAI's chats and text completions tell of them."""

from collections.abc import Sequence
from typing import Any, NamedTuple


class TokenLogProb(NamedTuple):
    """A token of an answer.

    Attributes:
        data: its bytes, maybe a part of a character.
        log_prob: of the token, given what was before it.
    """

    data: bytes
    log_prob: float

    @property
    def text(self) -> str:
        """Return the token as text; a part of a character is the character that stands for what cannot be read."""
        return self.data.decode("utf-8", "replace")


def chat_log_probs(tokens: Sequence[TokenLogProb]) -> dict[str, Any]:
    """Return the field `logprobs` of a choice of a chat: of the tokens that were chosen, and no others."""
    content = [
        {"token": token.text, "logprob": token.log_prob, "bytes": list(token.data), "top_logprobs": []}
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def text_log_probs(tokens: Sequence[TokenLogProb], *, offset: int) -> tuple[dict[str, Any], int]:
    """Return the field `logprobs` of a choice of a text completion, and the offset behind its tokens.

    Args:
        offset: of the first token in the text of the answer, in characters.
    """
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.text)
    told = {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.log_prob for token in tokens],
        "top_logprobs": None,
        "text_offset": offsets,
    }
    return told, offset
