# SPDX-License-Identifier: Apache-2.0
"""OpenAI's bodies of `/v1/completions` and `/v1/chat/completions` as requests of the serving contract.

A parameter is carried, or refused by name; values that ask for nothing (`"stream": false`) pass.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from clients.infer_messages import GenerateRequest
from clients.openai_api.api_error import ApiError, shown
from ensemble_configs.chat.chat_messages import ChatMessage

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
COMPLETION_TOKENS = 16  # OpenAI's default

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Penalty = Annotated[float, msgspec.Meta(ge=-2, le=2)]


class _StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers who measure events: there is none


class _Sampling(msgspec.Struct, kw_only=True):
    """The fields of both endpoints; null means not given."""

    model: str | None = None
    max_tokens: _Positive | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    n: Annotated[int, msgspec.Meta(ge=1, le=128)] | None = None
    stop: str | list[str] | None = None
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    presence_penalty: _Penalty | None = None
    frequency_penalty: _Penalty | None = None
    user: str | None = None  # for the provider's own records: it asks nothing of the answer
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


class _Completion(_Sampling, kw_only=True):
    prompt: str | list[str | int | list[int]] | None = None


class _Schema(msgspec.Struct, kw_only=True):
    schema: dict[str, object]
    name: str = ""
    strict: bool | None = None
    description: str | None = None


class _Format(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    type: str
    json_schema: _Schema | None = None


class _Chat(_Sampling, kw_only=True):
    messages: Annotated[list[ChatMessage], msgspec.Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    response_format: _Format | None = None


Refused = Mapping[str, tuple[tuple[object, ...], str]]

# Values that ask for nothing; any other is refused with the reason.
_NOTHING: Refused = {
    "echo": ((False,), "the prompt is not part of an answer here"),
    "suffix": (("",), "the models served here write what follows a prompt"),
    "best_of": ((1,), "ask for n answers and choose"),
    "logit_bias": (({},), "biases by token id are not carried"),
    "logprobs": ((False,), "the server tells the probability of its own tokens alone, and not their texts"),
    "top_logprobs": ((0,), "the server tells the probability of its own tokens alone, and not their texts"),
    "tools": (([],), "tool calls are not served yet"),
    "tool_choice": (("none", "auto"), "tool calls are not served yet"),
    "functions": (([],), "tool calls are not served yet"),
    "function_call": (("none", "auto"), "tool calls are not served yet"),
    "modalities": ((["text"],), "the models served here read and write text alone"),
}

_Prompt = dict[str, object]  # the field of a request that holds it, and what it is


class Asked(msgspec.Struct, frozen=True):
    """The requests of one body: one for each prompt, each of `n` sequences."""

    requests: tuple[GenerateRequest, ...]
    model: str | None  # as the body names it
    n: int
    is_chat: bool = False
    is_streaming: bool = False
    includes_usage: bool = False  # a stream ends with the tokens that it took


def requests_of(
    url: str, body: Mapping[str, object], *, base: GenerateRequest, chat_tokens: int, refused: Refused | None = None
) -> Asked:
    """Return the requests of a body; the server renders messages by its template.

    Args:
        url: `COMPLETIONS` or `CHAT`.
        base: what all requests have in common: class, tenant, limits.
        chat_tokens: limit of a chat that has none of its own.
        refused: parameters that are not for this caller: the values that pass all the same, and the reason.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    is_chat = url == CHAT
    given = {name: value for name, value in body.items() if value is not None}
    kind: type[_Sampling] = _Chat if is_chat else _Completion
    _refuse_what_is_not_carried(given, kind, {**_NOTHING, **(refused or {})})
    parsed = _converted(given, kind)
    prompts: list[_Prompt] = []
    max_tokens, guide = parsed.max_tokens, _Format(type="text")
    if isinstance(parsed, _Chat):
        prompts = [{"messages": [message.for_template() for message in parsed.messages]}]
        max_tokens = _one_limit(parsed) or chat_tokens
        guide = parsed.response_format or guide
    elif isinstance(parsed, _Completion):
        prompts = [{"text_input": text} for text in _texts(parsed.prompt)]
    common = msgspec.structs.replace(
        base, max_tokens=max_tokens or COMPLETION_TOKENS, **_sampling(parsed), **_guide(guide)
    )
    requests = tuple(msgspec.structs.replace(common, **prompt) for prompt in prompts)
    return Asked(
        requests,
        parsed.model,
        parsed.n or 1,
        is_chat=is_chat,
        is_streaming=bool(parsed.stream),
        includes_usage=_includes_usage(parsed),
    )


def _refuse_what_is_not_carried(body: dict[str, object], kind: type[_Sampling], refused: Refused) -> None:
    for name in list(body):
        if name not in refused:
            if name in kind.__struct_fields__:
                continue
            known = ", ".join(field for field in kind.__struct_fields__ if field not in refused)
            message = f"{name} is not supported; leave it out: there are {known}"
            raise ApiError(message, code="unsupported_parameter", param=name)
        allowed, why_not = refused[name]
        if not any(body[name] == value and type(body[name]) is type(value) for value in allowed):
            message = f"{name} is not supported: {why_not}; leave it out"
            raise ApiError(message, code="unsupported_parameter", param=name)
        del body[name]


def _includes_usage(parsed: _Sampling) -> bool:
    if parsed.stream_options is not None and not parsed.stream:
        raise ApiError("stream_options is for streams; send stream as well", code="invalid_value",
                       param="stream_options")  # fmt: skip
    return parsed.stream_options is not None and bool(parsed.stream_options.include_usage)


def _converted(body: dict[str, object], kind: type[_Sampling]) -> _Sampling:
    try:
        return msgspec.convert(body, kind)
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).partition(" - at `$")
        field = re.match(r"Object missing required field `(\w+)`", text)
        param = path.rstrip("`").removeprefix(".") or (field[1] if field else None)
        got = f", got {shown(body[param])}" if param in body else ""
        message = f"{param}: {text[:1].lower()}{text[1:]}{got}"
        raise ApiError(message, code="invalid_value", param=param) from exc


def _texts(prompt: str | list[str | int | list[int]] | None) -> list[str]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        message = "prompt is missing or empty; it must be text or a list of texts"
        raise ApiError(message, code="missing_field", param="prompt")
    texts = [text for text in prompt if isinstance(text, str)]
    if len(texts) < len(prompt):
        raise ApiError(
            "prompt as token ids is not supported: the model that takes ids gives ids back; send text",
            code="unsupported_parameter",
            param="prompt",
        )
    return texts


def _one_limit(chat: _Chat) -> int | None:
    if chat.max_tokens is not None and chat.max_completion_tokens not in {None, chat.max_tokens}:
        raise ApiError(
            f"max_tokens ({chat.max_tokens}) contradicts max_completion_tokens "
            f"({chat.max_completion_tokens}); send the latter alone",
            code="invalid_value",
            param="max_tokens",
        )
    return chat.max_completion_tokens or chat.max_tokens


def _sampling(parsed: _Sampling) -> dict[str, object]:
    stop = (parsed.stop,) if isinstance(parsed.stop, str) else tuple(parsed.stop or ())
    found: dict[str, object] = {
        "stop_words": stop or None,
        "seed": parsed.seed,
        "presence_penalty": parsed.presence_penalty or None,
        "frequency_penalty": parsed.frequency_penalty or None,
        "num_return_sequences": parsed.n if parsed.n != 1 else None,
    }
    temperature = 1.0 if parsed.temperature is None else parsed.temperature
    if temperature > 0:  # without top_p the contract is greedy, which is what 0 asks for
        found |= {"temperature": temperature, "top_p": 1.0 if parsed.top_p is None else parsed.top_p}
    return found


def _guide(wanted: _Format) -> dict[str, object]:
    if wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"guided_decoding_guide_type": "json"}
    if wanted.type == "json_schema" and wanted.json_schema is not None:
        schema = msgspec.json.encode(wanted.json_schema.schema).decode()
        return {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": schema}
    raise ApiError(
        f"response_format must be text, json_object, or json_schema with its schema; got {wanted.type!r}",
        code="invalid_value",
        param="response_format",
    )
