# SPDX-License-Identifier: Apache-2.0
"""JSON schemas as structural tags that leave a model no white space to choose, for guided decoding on OpenVINO.

The library behind it (xgrammar) lets any white space stand between the parts of an object, and OpenVINO GenAI 2026.4
has no way to say otherwise: a small model can write spaces until its tokens are spent. So objects are written out
here, as `json.dumps` would, and the library guides what is inside them. What a tag cannot say (any properties, lists
without an end, recursion) stays a schema of the library's, white space and all.
"""

import json
from collections.abc import Mapping
from typing import Any

# Of one schema, each a grammar to compile (32: some 50 ms, on the engine's thread). Where all properties may be left
# out, each way to begin is written out.
_MAX_FORMATS = 32
_MAX_IN_ALL = 128  # of all schemas of a structural tag, such as those of many tools; the later ones stay as they are
_MAX_DEPTH = 16
# What changes an object or a choice in a way that is not written out here; titles and descriptions say nothing.
_OBJECT = {"type", "properties", "required", "additionalProperties"}
_LIST = {"type", "items", "minItems", "maxItems"}
_SAYS_NOTHING = {"title", "description", "default", "examples", "$defs", "definitions", "$schema", "$id"}

Format = dict[str, Any]
_NOTHING: Format = {"type": "grammar", "grammar": 'root ::= ""'}  # a tag has no other word for it


class _TooLarge(Exception):
    """A schema would become too many formats."""


def without_white_space(guide_type: str, guide: str) -> tuple[str, str]:
    """Return a guide with its type in which JSON has no white space to choose, as far as a tag can say it.

    A guide of another type, or one that is wrong, is returned as it is: the library says what is wrong with it.
    """
    try:
        return _without_white_space(guide_type, guide)
    except (ValueError, RecursionError):  # not JSON, or nested so deep that nobody means it
        return guide_type, guide


def _without_white_space(guide_type: str, guide: str) -> tuple[str, str]:
    document = json.loads(guide) if guide_type in {"json_schema", "structural_tag"} else None
    if not isinstance(document, dict):
        return guide_type, guide
    if guide_type == "structural_tag":
        return guide_type, json.dumps(_rewritten(document, [_MAX_IN_ALL]), ensure_ascii=False)
    found = json_format(document)
    if found["type"] == "json_schema":
        return guide_type, guide
    return "structural_tag", json.dumps({"type": "structural_tag", "format": found}, ensure_ascii=False)


def json_format(schema: Mapping[str, Any], left: list[int] | None = None) -> Format:
    """Return the format of a schema: written out where that is possible, else the schema itself.

    Args:
        left: how many formats there may still be, of several schemas; it is counted down.
    """
    writer = _Writer(schema)
    try:
        found = writer.format(schema)
    except _TooLarge:
        return _leaf(schema)
    if left is not None:
        if writer.num_formats > left[0]:
            return _leaf(schema)
        left[0] -= writer.num_formats
    return found


def _rewritten(value: Any, left: list[int]) -> Any:
    """Return a part of a structural tag with its schemas written out."""
    if isinstance(value, list):
        return [_rewritten(each, left) for each in value]
    if not isinstance(value, dict):
        return value
    schema = value.get("json_schema")
    if value.get("type") == "json_schema" and isinstance(schema, dict):
        return json_format(schema, left)
    return {key: _rewritten(each, left) for key, each in value.items()}


class _Writer:
    """The formats of one schema. Args: `root` has the definitions that references name."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
        self._root = root
        self.num_formats = 0

    def format(self, schema: Any, depth: int = 0) -> Format:
        """Return the format of a schema within the root."""
        self._count()
        if depth > _MAX_DEPTH:  # as what refers to itself
            raise _TooLarge
        schema = self._resolved(schema)
        if not isinstance(schema, dict):
            return self._leaf(schema)
        said = schema.keys() - _SAYS_NOTHING
        if said == {"anyOf"} and schema["anyOf"]:
            return _one_of([self.format(each, depth + 1) for each in schema["anyOf"]])
        kind = schema.get("type")
        if kind == "object" and said <= _OBJECT and _is_closed(schema):
            return self._object(schema, depth)
        if kind == "array" and said <= _LIST and isinstance(schema.get("maxItems"), int) and "items" in schema:
            return self._list(schema, depth)
        return self._leaf(schema)

    def _object(self, schema: Mapping[str, Any], depth: int) -> Format:
        properties = schema.get("properties", {})
        required = set(schema.get("required", ()))
        if not isinstance(properties, dict) or not required <= properties.keys():
            return self._leaf(schema)
        names = list(properties)

        def member(name: str, *, before: str = "") -> list[Format]:
            key = json.dumps(name, ensure_ascii=False)
            return [_text(f"{before}{key}: "), self.format(properties[name], depth + 1)]

        def tail(names: list[str]) -> list[Format]:
            """Return what follows a property."""
            found = []
            for name in names:
                written = member(name, before=", ")
                found += written if name in required else [_one_of([_NOTHING, _in_row(written)])]
            return [*found, _text("}")]

        if required:  # what may be left out before it has its comma behind it
            first = next(index for index, name in enumerate(names) if name in required)
            head = [_one_of([_NOTHING, _in_row([*member(name), _text(", ")])]) for name in names[:first]]
            return _in_row([_text("{"), *head, *member(names[first]), *tail(names[first + 1 :])])
        ways = [_in_row([*member(name, before="{"), *tail(names[index + 1 :])]) for index, name in enumerate(names)]
        return _one_of([_text("{}"), *ways])

    def _list(self, schema: Mapping[str, Any], depth: int) -> Format:
        least, most = schema.get("minItems", 0), schema["maxItems"]

        def rest(count: int) -> Format:
            """Return what follows in a list that has so many items."""
            if count == most:
                return _text("[]" if not count else "]")
            item = _in_row([_text(", " if count else "["), self.format(schema["items"], depth + 1), rest(count + 1)])
            return item if count < least else _one_of([_text("]" if count else "[]"), item])

        return rest(0) if 0 <= least <= most else self._leaf(schema)

    def _resolved(self, schema: Any) -> Any:
        """Return what a reference names; a reference to the root, or around, stays."""
        for _ in range(_MAX_DEPTH):
            if not (isinstance(schema, dict) and schema.keys() - _SAYS_NOTHING == {"$ref"}):
                return schema
            match str(schema["$ref"]).split("/"):
                case ["#", ("$defs" | "definitions") as group, name] if name in self._definitions.get(group, {}):
                    schema = self._definitions[group][name]
                case _:
                    return schema
        return schema

    def _leaf(self, schema: Any) -> Format:
        if isinstance(schema, dict) and schema is not self._root and "$ref" in json.dumps(schema):
            schema = {**schema, **self._definitions}
        return _leaf(schema)

    def _count(self) -> None:
        self.num_formats += 1
        if self.num_formats > _MAX_FORMATS:
            raise _TooLarge


def _is_closed(schema: Mapping[str, Any]) -> bool:
    """Return whether an object has its properties alone; the library takes it so where the schema does not say."""
    if "additionalProperties" in schema:
        return schema["additionalProperties"] is False
    return "properties" in schema


def _leaf(schema: Any) -> Format:
    return {"type": "json_schema", "json_schema": schema}


def _text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def _in_row(formats: list[Format]) -> Format:
    """Return formats that follow each other; texts beside each other are one."""
    flat: list[Format] = []
    for each in formats:
        for part in each["elements"] if each["type"] == "sequence" else [each]:
            if flat and flat[-1]["type"] == part["type"] == "const_string":
                flat[-1] = _text(flat[-1]["value"] + part["value"])
            else:
                flat.append(part)
    return flat[0] if len(flat) == 1 else {"type": "sequence", "elements": flat}


def _one_of(formats: list[Format]) -> Format:
    return formats[0] if len(formats) == 1 else {"type": "or", "elements": formats}
