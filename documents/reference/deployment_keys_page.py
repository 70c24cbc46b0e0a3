# SPDX-License-Identifier: Apache-2.0
"""The page of every key that a deployment file may have, from the JSON schema of `DeploymentSpec`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from documents.reference.cells import cell
from ensemble_configs.spec.deployment import DeploymentSpec
from trireme.base.text_tables import markdown_table

_INTRODUCTION = """# Deployment keys

A deployment file has the keys of the first table. With one model, the keys of `models` may stand beside `name`.
Unknown keys are refused. Examples and what keys do together: [deployments](../deployments.md).
"""
_AT_LEAST, _AT_MOST = ("minimum", "ge"), ("maximum", "le")
_ABOVE, _BELOW = ("exclusiveMinimum", "gt"), ("exclusiveMaximum", "lt")
_SIZES = {"minItems": "{} at least", "maxItems": "{} at most", "maxLength": "{} characters at most", "pattern": "`{}`"}
_NAMES = {"string": "text", "integer": "integer", "number": "number", "boolean": "true or false", "object": "mapping"}

Schema = Mapping[str, Any]


def render() -> str:
    """Return the page: a section for the file itself, and one for each part, in the order in which the keys name it."""
    schema = DeploymentSpec.model_json_schema()
    parts = {"": schema} | {name: schema["$defs"][name] for name in _parts(schema, schema["$defs"])}
    sections = [_section(name, part, schema["$defs"]) for name, part in parts.items()]
    return "\n".join([_INTRODUCTION, *sections])


def _parts(schema: Schema, parts: Schema) -> list[str]:
    """Return the parts that a schema names, those that the parts name behind them, each once."""
    found: list[str] = []
    for key in schema.get("properties", {}).values():
        for name in _references(key):
            below = [name, *_parts(parts[name], parts)] if parts[name].get("properties") else []
            found += [one for one in below if one not in found]
    return found


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        for name, below in value.items():
            if name not in ("default", "discriminator"):
                yield from _references(below)
    elif isinstance(value, list):
        for below in value:
            yield from _references(below)


def _section(name: str, part: Schema, parts: Schema) -> str:
    required = part.get("required", ())
    rows = (
        [f"`{key}`", _kind(one), _default(key in required, one), _meaning(one, parts)]
        for key, one in part["properties"].items()
    )
    heading = f"## {_title(name)}" if name else "## The file"
    return f"{heading}\n\n{_described(part)}\n\n{markdown_table(['key', 'value', 'default', 'meaning'], rows)}\n"


def _title(name: str) -> str:
    return name.removesuffix("Spec")


def _described(part: Schema) -> str:
    return cell(part.get("description", "").split("\n\n")[0])


def _kind(key: Schema) -> str:
    choices = key.get("anyOf") or key.get("oneOf")
    if choices:
        return " or ".join(_kind(one) for one in choices if one.get("type") != "null")
    if "$ref" in key:
        title = _title(key["$ref"].rpartition("/")[2])
        return "any" if title == "JsonValue" else f"[{title}](#{title.lower()})"
    if "enum" in key or "const" in key:
        return ", ".join(f"`{value}`" for value in key.get("enum", [key.get("const")]))
    sizes = [text.format(str(key[name]).replace("|", r"\|")) for name, text in _SIZES.items() if name in key]
    if key.get("type") == "array":
        return ", ".join([f"list of {_kind(key.get('items') or {})}", *sizes])
    kind = "path" if key.get("format") == "path" else _NAMES.get(key.get("type", ""), "any")
    return ", ".join([" ".join([kind, *_range(key)]), *sizes])


def _range(key: Schema) -> list[str]:
    """Return the bounds of a number, `1 to 64`, or those that are there."""
    bounds = {
        sign: next(
            (f"{key[name]:g}" if isinstance(key[name], float) else str(key[name]) for name in names if name in key), ""
        )
        for sign, names in (("≥", _AT_LEAST), (">", _ABOVE), ("≤", _AT_MOST), ("<", _BELOW))
    }
    if bounds["≥"] and bounds["≤"]:
        return [f"{bounds['≥']} to {bounds['≤']}"]
    return [f"{sign} {value}" for sign, value in bounds.items() if value]


def _default(is_required: bool, key: Schema) -> str:
    if is_required:
        return "required"
    value = key.get("default")
    if value is None:
        return "none"
    return "" if isinstance(value, dict) or value == [] else f"`{json.dumps(value)}`"


def _meaning(key: Schema, parts: Schema) -> str:
    """Return the description of a key, or else that of the one part that is its value."""
    if "description" in key:
        return cell(key["description"])
    if "const" in key:
        return "chooses these keys"
    named = list(_references(key))
    if len(named) > 1:
        return "one of these"
    return _described(parts[named[0]]) if named else ""
