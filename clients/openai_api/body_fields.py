# SPDX-License-Identifier: Apache-2.0
"""The fields of OpenAI's bodies: read into types, or refused by name; and the ones that all endpoints have.

Values that ask for nothing (`"echo": false`) pass.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from clients.openai_api.api_error import ApiError, shown
from trireme.base.known_types import known

Positive = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Temperature = Annotated[float, msgspec.Meta(ge=0, le=2)]
TopP = Annotated[float, msgspec.Meta(gt=0, le=1)]
ServiceTier = Literal["auto", "default", "flex", "priority"]
# Parameters with the values that pass, and the reason why others do not.
Refused = Mapping[str, tuple[tuple[object, ...], str]]

_PRIORITY_OF_TIER = {"priority": 1, "flex": 3}  # admission's classes: premium, batch
_NOT_KEPT = "nothing is kept here"
_TEXT_ALONE = "the models served here read and write text alone"
_NOTHING: Refused = {
    "store": ((False,), _NOT_KEPT),
    "metadata": (({},), _NOT_KEPT),
    "modalities": ((["text"],), _TEXT_ALONE),
    "audio": ((), _TEXT_ALONE),
}

S = TypeVar("S", bound=msgspec.Struct)


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None  # padding against eavesdroppers who measure events: there is none
    continuous_usage_stats: bool | None = None  # vLLM's

    def __post_init__(self) -> None:
        """Check what the types cannot say."""
        if self.continuous_usage_stats:
            raise ValueError("continuous_usage_stats must be false: the usage of a stream comes with its end")


class Common(msgspec.Struct, kw_only=True):
    """The fields of every endpoint; null means not given."""

    model: str | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None  # for the provider's own records: it asks nothing of the answer
    # Of a conversation, say: requests with the same one go to the same server, for the sake of its KV cache.
    prompt_cache_key: Annotated[str, msgspec.Meta(max_length=512)] | None = None
    service_tier: ServiceTier | None = None
    priority: Annotated[int, msgspec.Meta(ge=1, le=3)] | None = None  # 1 premium, 2 standard, 3 batch


def read_fields(body: Mapping[str, Any], kind: type[S], refused: Refused) -> S:
    """Return a body as its type.

    Args:
        refused: what this endpoint does not carry.

    Raises:
        ApiError: it names the parameter, its value and what is allowed.
    """
    given = {name: value for name, value in body.items() if value is not None}
    nothing = {name: why for name, why in _NOTHING.items() if name not in kind.__struct_fields__}
    _refuse(given, kind, {**nothing, **refused})
    try:
        return msgspec.convert(given, known(kind))
    except msgspec.ValidationError as exc:
        text, _, path = str(exc).partition(" - at `$")
        field = re.match(r"Object missing required field `(\w+)`", text)
        param = path.rstrip("`").removeprefix(".") or (field[1] if field else None)
        got = f", got {shown(given[param])}" if param in given else ""
        message = f"{param}: {text[:1].lower()}{text[1:]}{got}"
        raise ApiError(message, code="invalid_value", param=param) from exc


def sampling_of(parsed: Common) -> dict[str, object]:
    """Return the fields of a request that every endpoint has; temperature and top_p are 1 by default."""
    temperature = 1.0 if parsed.temperature is None else parsed.temperature
    found: dict[str, object] = {}
    if temperature > 0:  # without top_p the contract is greedy, which is what 0 asks for
        found = {"temperature": temperature, "top_p": 1.0 if parsed.top_p is None else parsed.top_p}
    priority = parsed.priority or _PRIORITY_OF_TIER.get(parsed.service_tier or "")
    return found if priority is None else found | {"priority": priority}


def includes_usage(parsed: Common) -> bool:
    """Return whether a stream ends with its usage.

    Raises:
        ApiError: there are options of a stream without a stream.
    """
    if parsed.stream_options is None:
        return False
    if not parsed.stream:
        message = "stream_options is for streams; send stream as well"
        raise ApiError(message, code="invalid_value", param="stream_options")
    return bool(parsed.stream_options.include_usage)


def guide_of(format_type: str, schema: object, *, param: str) -> dict[str, object]:
    """Return the fields of a request that hold its answer to a format.

    Args:
        schema: of `json_schema`; None: there is none.
        param: name of the format in the body.

    Raises:
        ApiError: there is no such format, or no schema.
    """
    if format_type == "text":
        return {}
    if format_type == "json_object":
        schema = {"type": "object"}  # the contract's `json` is a list or a number as well
    if format_type in {"json_object", "json_schema"} and schema is not None:
        guide = msgspec.json.encode(schema).decode()
        return {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": guide}
    raise ApiError(
        f"{param} must be text, json_object, or json_schema with its schema; got {format_type!r}",
        code="invalid_value",
        param=param,
    )


def _refuse(given: dict[str, Any], kind: type[msgspec.Struct], refused: Refused) -> None:
    """Take what asks for nothing out of a body, and refuse the rest of what is not carried."""
    for name in list(given):
        if name not in refused:
            if name in kind.__struct_fields__:
                continue
            known = ", ".join(field for field in kind.__struct_fields__ if field not in refused)
            message = f"{name} is not supported; leave it out: there are {known}"
            raise ApiError(message, code="unsupported_parameter", param=name)
        allowed, why_not = refused[name]
        if not any(given[name] == value and type(given[name]) is type(value) for value in allowed):
            message = f"{name} is not supported: {why_not}; leave it out"
            raise ApiError(message, code="unsupported_parameter", param=name)
        del given[name]
