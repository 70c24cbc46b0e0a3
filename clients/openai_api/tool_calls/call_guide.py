# SPDX-License-Identifier: Apache-2.0
"""The guides that hold an answer to calls of tools, in the model's own style, with arguments that fit.

A guide is a structural tag of xgrammar's: the marks of the style as texts, the arguments by their schemas. Llama's
calls are JSON and nothing else, so a plain schema says them, which compiled engines of TensorRT-LLM take too.

`call_guide` wants one call at least. `strict_guide` leaves an answer free until it begins a call.

Source: xgrammar's documentation of structural tags (formats `tag`, `tags_with_separator`, `triggered_tags`, `sequence`,
`or`, `any_text`, `qwen_xml_parameter`).
"""

import json
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from clients.openai_api.tool_calls import hermes, mistral, reasoning
from clients.openai_api.tool_calls.callable_tools import CallableTools
from clients.openai_api.tool_calls.reader_choice import Style

_NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}}
_ANYTHING: Mapping[str, object] = {"type": "object", "additionalProperties": True}
# What says by itself which values there are: `type` beside it would not say more.
_WHOLE = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"})
_SAY_WHICH = (_WHOLE - {"type"}) | {"required", "additionalProperties", "patternProperties"}

Format = dict[str, Any]


class Guide(NamedTuple):
    """A guide by the serving contract's words."""

    guide_type: str
    guide: str


def call_guide(
    style: Style,
    tools: CallableTools,
    *,
    is_single: bool,
    is_reasoning: bool = False,
    begins_inside: bool = False,
) -> Guide:
    """Return the guide of an answer that calls tools.

    Args:
        tools: that may be called, with the schemas of their parameters.
        is_single: there is one call; else one or more, where the style has several.
        is_reasoning: the model may think before it calls.
        begins_inside: the prompt ends within the reasoning, so the model does think.
    """
    schemas = {name: _of_object(schema) for name, schema in tools.items()}
    if style is Style.LLAMA and not is_reasoning and "$ref" not in json.dumps(schemas):
        calls = [_call_schema(name, schema) for name, schema in schemas.items()]
        return Guide("json_schema", _dumps(calls[0] if len(calls) == 1 else {"anyOf": calls}))
    found = _tags(_TAGS[style](schemas), separator=_SEPARATORS[style], is_single=is_single or style is Style.LLAMA)
    if is_reasoning:
        thinking = _sequence(_thought(begins_inside=begins_inside), _text("\n\n"), found)
        found = thinking if begins_inside else _one_of([thinking, found])
    return _structural_tag(found)


def strict_guide(
    style: Style,
    tools: CallableTools,
    strict: Collection[str],
    *,
    is_single: bool,
    is_reasoning: bool = False,
    begins_inside: bool = False,
) -> Guide | None:
    """Return the guide of an answer that need not call, and whose calls of some tools have arguments that fit.

    None: nothing tells such a call from text before it is written, as in Llama's style, where a call is an answer that
    is JSON.

    Args:
        tools: that may be called, with the schemas of their parameters.
        strict: names of those whose arguments must fit.
        is_single: the answer ends with its first call.
        is_reasoning: the model may think before; what it thinks is free.
        begins_inside: the prompt ends within the reasoning.
    """
    if style is Style.LLAMA:
        return None
    schemas = {name: _of_object(schema) if name in strict else _ANYTHING for name, schema in tools.items()}
    found = {
        "type": "triggered_tags",
        "triggers": [_TRIGGERS[style]],
        "tags": _TAGS[style](schemas),
        "at_least_one": False,
        "stop_after_first": is_single,
    }
    if is_reasoning:
        thinking = _sequence(_thought(begins_inside=begins_inside), found)
        found = thinking if begins_inside else _one_of([thinking, found])
    return _structural_tag(found)


def _of_object(schema: Mapping[str, object]) -> Mapping[str, object]:
    """Return the schema of arguments, which are an object whatever the schema leaves out.

    Where no arguments are described there are none: any object would do, and a model that may write any writes some.
    """
    is_object = schema.get("type", "object") == "object"
    if is_object and not schema.keys() & _SAY_WHICH and not schema.get("properties"):
        return _NO_ARGUMENTS
    return schema if schema.keys() & _WHOLE else {"type": "object", **schema}


def _call_schema(name: str, schema: Mapping[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": schema},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _hermes(schemas: Mapping[str, Any]) -> list[Format]:
    return [
        _tag(f'{hermes.BEGIN}\n{{"name": "{name}", "arguments": ', _json(schema), f"}}\n{hermes.END}")
        for name, schema in schemas.items()
    ]


def _qwen3_coder(schemas: Mapping[str, Any]) -> list[Format]:
    tags = []
    for name, schema in schemas.items():
        begin, end = f"{hermes.BEGIN}\n<function={name}>\n", f"</function>\n{hermes.END}"
        if schema == _NO_ARGUMENTS:  # which the format cannot say
            tags.append(_tag(begin, _text("</function>"), f"\n{hermes.END}"))
        elif schema == _ANYTHING:
            tags.append(_tag(begin, {"type": "any_text"}, end))
        else:
            tags.append(_tag(begin, {"type": "qwen_xml_parameter", "json_schema": schema}, f"\n{end}"))
    return tags


def _llama(schemas: Mapping[str, Any]) -> list[Format]:
    return [_tag(f'{{"name": "{name}", "parameters": ', _json(schema), "}") for name, schema in schemas.items()]


def _mistral(schemas: Mapping[str, Any]) -> list[Format]:
    """Return both forms, of which the model knows one: a list of one call, and a name with its arguments."""
    listed = [
        _tag(f'{mistral.TOOL_CALLS} [{{"name": "{name}", "arguments": ', _json(schema), "}]")
        for name, schema in schemas.items()
    ]
    named = [_tag(f"{mistral.TOOL_CALLS}{name}{mistral.ARGS}", _json(schema), "") for name, schema in schemas.items()]
    return [*listed, *named]


_TAGS = {
    Style.HERMES: _hermes,
    Style.LLAMA: _llama,
    Style.MISTRAL: _mistral,
    Style.QWEN3_CODER: _qwen3_coder,
}
_SEPARATORS = {Style.HERMES: "\n", Style.LLAMA: "; ", Style.MISTRAL: "", Style.QWEN3_CODER: "\n"}
_TRIGGERS = {Style.HERMES: hermes.BEGIN, Style.MISTRAL: mistral.TOOL_CALLS, Style.QWEN3_CODER: hermes.BEGIN}


def _thought(*, begins_inside: bool) -> Format:
    return _tag("" if begins_inside else reasoning.BEGIN, {"type": "any_text"}, reasoning.END)


def _structural_tag(found: Format) -> Guide:
    return Guide("structural_tag", _dumps({"type": "structural_tag", "format": found}))


def _json(schema: Mapping[str, object]) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _tags(tags: list[Format], *, separator: str, is_single: bool) -> Format:
    return {
        "type": "tags_with_separator",
        "tags": tags,
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": is_single,
    }


def _sequence(*elements: Format) -> Format:
    return {"type": "sequence", "elements": list(elements)}


def _one_of(formats: list[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": formats}


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
