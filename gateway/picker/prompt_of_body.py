# SPDX-License-Identifier: Apache-2.0
"""The prompt in a request's body, as far as it decides where the request goes; servers check the rest of it."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from clients.infer_messages import GenerateRequest
from ensemble_configs.chat.prefix_numbers import PROMPT_INPUTS, prefix_of_inputs
from ensemble_configs.spec.model_names import ROUTING_MODELS
from gateway.servers.prefixes import numbers_of

_TRITON_PATH = re.compile(r"/v2/models/([^/?]+)")


class Prompt(NamedTuple):
    """The facts of a request that decide where it goes.

    Attributes:
        model: name that the request asks for, Triton's or a deployment's; "": it names none.
        numbers: of its prompt's beginnings; empty: nobody knows them.
        is_session: whether the first of them is that of a session.
        is_told: whether a server that tells KV events has the same numbers, so that it is believed. It has none of
            `ensemble_graph`, and of other bodies than Triton's a gateway behind the picker makes what a server sees:
            where those went is remembered here.
    """

    model: str = ""
    numbers: tuple[int, ...] = ()
    is_session: bool = False
    is_told: bool = False


def prompt_of(path: str, body: bytes) -> Prompt:
    """Return what is known of a prompt: of OpenAI's and Anthropic's bodies, and of Triton's `generate`.

    A body that cannot be read has no prompt: its server says what is wrong with it.
    """
    found = _TRITON_PATH.match(path)
    model = "" if found is None else found[1]
    if not body:
        return Prompt(model)
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return Prompt(model)
    if not isinstance(said, dict):
        return Prompt(model)
    session = said.get("prompt_cache_key")
    session = session if isinstance(session, str) else ""
    asked = said.get("model")
    if found is not None:
        return _of_triton(model, said)
    request = _request(said)
    numbers = () if request is None else tuple(numbers_of(request, session=session))
    return Prompt(asked if isinstance(asked, str) else "", numbers, bool(session and numbers))


def _of_triton(model: str, said: Mapping[str, Any]) -> Prompt:
    nested = said.get("parameters")
    said = {**said, **nested} if isinstance(nested, dict) else said
    values = {name: _only(said.get(name)) for name in PROMPT_INPUTS}
    prefix = prefix_of_inputs(
        {name: str(value).encode() for name, value in values.items() if isinstance(value, str | int)}
    )
    return Prompt(model, () if prefix is None else tuple(prefix.numbers), is_told=model.endswith(ROUTING_MODELS))


def _only(value: object) -> object:
    """Return a value that may stand in a list by itself."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _request(said: Mapping[str, Any]) -> GenerateRequest | None:
    tools = _objects(said.get("tools"))
    for name in ("messages", "input"):
        if messages := _objects(said.get(name)):
            return GenerateRequest(messages=messages, tools=tools or None, max_tokens=1)
    for name in ("prompt", "input"):
        if isinstance(text := said.get(name), str):
            return GenerateRequest(text_input=text, max_tokens=1)
    return None


def _objects(said: object) -> list[dict[str, object]]:
    return [each for each in said if isinstance(each, dict)] if isinstance(said, list) else []
