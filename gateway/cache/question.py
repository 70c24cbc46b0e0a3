# SPDX-License-Identifier: Apache-2.0
"""The question of a chat that another question may be alike to: its last message, and all that must be the same."""

from typing import NamedTuple

import msgspec

from clients.openai_api.asked import Asked
from gateway.cache.kept_answer import is_repeatable, name_of


class Question(NamedTuple):
    """A question.

    Attributes:
        text: of the last message, which may differ.
        scope: the same for what is asked by the same owner of the same model with all else equal.
    """

    text: str
    scope: str


def question_of(asked: Asked, *, model: str, owner: str) -> Question | None:
    """Return the question of what is asked; None: its answer is given to no other question.

    It is one chat whose last message is a user's text, which has one answer. Where tools are offered none is given: a
    call that was meant for another question would be carried out.

    Args:
        model: that is asked.
        owner: a tenant, or a key.
    """
    if len(asked.requests) != 1 or asked.tools:
        return None
    [request] = asked.requests
    if not request.messages or not is_repeatable(request):
        return None
    *earlier, last = request.messages
    text = last.get("content")
    if last.get("role") != "user" or not isinstance(text, str) or not text.strip():
        return None
    open_request = msgspec.structs.replace(request, messages=[*earlier, {**last, "content": ""}])
    scope = name_of(msgspec.structs.replace(asked, requests=(open_request,)), model=model, owner=owner)
    return Question(text, scope)
