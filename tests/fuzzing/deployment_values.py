# SPDX-License-Identifier: Apache-2.0
"""Values for a field of a deployment, from its schema: allowed ones, and others."""

import math
import random
from collections.abc import Iterator
from typing import Any

Schema = dict[str, Any]

_NUMERIC = ("integer", "number")
_HUGE = 10**30
_MAX_COUNT = 2**31 - 1  # the most that any number may be that has no lower bound of its own above
# Text that a field takes but that no schema lists, by the field's name; "" and wrong ones are refused by its pattern.
_TEXTS = {
    "host": ["127.0.0.1", "0.0.0.0", "localhost", "::1"],
    "gpu": ["h100", "l40s", "a100_80gb"],
    "target_modules": ["attn_q", "attn_k"],
}
_NAMES = ["other", "third", "a1", "n" * 64]
_OF_OTHER_TYPES: dict[str, list[object]] = {
    "integer": ["12", "twelve", 1.5, 3.0, True, [], {}, [1], {"x": 1}],
    "number": ["twelve", True, [], {}, [1.0], {"x": 1}],
    "string": [12, 1.5, True, [], {}, ["text"], {"x": 1}],
    "boolean": ["later", "true", 1, 0, 2, 1.0, [], {}],
    "array": ["text", 12, 1.5, True, {"x": 1}],
    "object": ["text", 12, 1.5, True, [1]],
}


def alternatives(schema: Schema) -> Iterator[Schema]:
    """Yield the types that a value may have."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            for part in schema[key]:
                yield from alternatives(part)
            return
    yield schema


def of_wrong_type(schemas: list[Schema], chance: random.Random) -> object:
    """Return a value that none of the alternatives can be."""
    types = {_type_of(schema) for schema in schemas}
    pool = _OF_OTHER_TYPES[chance.choice(sorted(types - {"null"}))]
    fitting = [value for value in pool if not any(_may_be(value, each) for each in types)]
    return chance.choice([*fitting, *([] if "null" in types else [None])])


def _may_be(value: object, kind: str) -> bool:
    """Return whether a value may be of a type; as in YAML and the specs, a number may be written as an integer."""
    if isinstance(value, bool):
        return kind == "boolean"
    return {
        "integer": isinstance(value, int),
        "number": isinstance(value, int | float) or value == "12",
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }.get(kind, False)


def out_of_range(schemas: list[Schema], chance: random.Random) -> object:
    """Return a number that none of the alternatives allows; if every number is allowed, one that none should allow."""
    schema = next(schema for schema in schemas if is_numeric(schema))
    low, high = bounds(schema)
    is_integer = schema["type"] == "integer"
    outside: list[object] = [_HUGE, -_HUGE, float("inf"), float("-inf"), float("nan")]
    outside += [2**63, 1e300]
    if low > -math.inf:
        outside += [int(low) - 1, -1 if low >= 0 else low - 1]
        outside += [] if _is_inside(0, schema) else [0]
    if high < math.inf:
        outside.append(int(high) + 1)
    return chance.choice([value for value in outside if not is_integer or value != 1e300])


def is_numeric(schema: Schema) -> bool:
    """Return whether a schema is of numbers."""
    return schema.get("type") in _NUMERIC


def _is_inside(value: float, schema: Schema) -> bool:
    low, high = bounds(schema)
    above = value > low if {"gt", "exclusiveMinimum"} & schema.keys() else value >= low
    return above and (value < high if {"lt", "exclusiveMaximum"} & schema.keys() else value <= high)


def bounds(schema: Schema) -> tuple[float, float]:
    """Return the bounds of a number; infinite where the schema has none. Pydantic has two spellings of each."""
    low = [schema[key] for key in ("minimum", "exclusiveMinimum", "ge", "gt") if key in schema]
    high = [schema[key] for key in ("maximum", "exclusiveMaximum", "le", "lt") if key in schema]
    return max(low, default=-math.inf), min(high, default=math.inf)


def is_scalar(schema: Schema, name: str) -> bool:
    """Return whether `allowed` knows values: not for mappings, lists of mappings, and tags, which have a kind."""
    if name in ("provider", "method"):
        return False
    if schema.get("type") == "array":
        return any(is_scalar(item, name) for item in alternatives(schema.get("items", {"type": "object"})))
    return _type_of(schema) != "object" or "additionalProperties" in schema


def allowed(name: str, schema: Schema, before: object, chance: random.Random) -> object:
    """Return a value that the schema allows: near the value before, a small one, or one at an end of the range."""
    match _type_of(schema):
        case "null":
            return None
        case "boolean":
            return not before
        case "integer" | "number":
            return _number(schema, before, chance)
        case "string":
            return _string(name, schema, before, chance)
        case "array":
            items = list(alternatives(schema["items"]))
            values = [allowed(name, chance.choice(items), None, chance) for _ in range(chance.randint(1, 3))]
            return [value for at, value in enumerate(values) if value not in values[:at]]
        case _:
            return {tenant: chance.choice([0.001, 0.5, 2.0, 1000]) for tenant in chance.sample(_NAMES, 2)}


def _number(schema: Schema, before: object, chance: random.Random) -> float:
    low, high = bounds(schema)
    high = min(high, _MAX_COUNT)
    found: list[float] = [low, low + 1, high, high - 1, 1, 2, 16, 1000]
    if isinstance(before, int | float):
        found += 3 * [before * 2, before / 2, before + 1]
    if schema["type"] == "integer":
        found = [int(value) for value in found if math.isfinite(value)]
    else:
        found += [0.5, 0.25, 0.999]
    return chance.choice([value for value in found if math.isfinite(value) and _is_inside(value, schema)])


def _string(name: str, schema: Schema, before: object, chance: random.Random) -> object:
    if "const" in schema or "enum" in schema:
        return chance.choice(schema.get("enum", [schema.get("const")]))
    if schema.get("format") == "path":
        return chance.choice([before, "elsewhere", "/nowhere/at/all"])
    if "MIG" in schema.get("pattern", ""):
        return chance.choice(["GPU-1a2b", "MIG-3c4d/1/0"])
    return chance.choice(_TEXTS.get(name, _NAMES))


def _type_of(schema: Schema) -> str:
    if "$ref" in schema:
        return "object"
    if "const" in schema or "enum" in schema:
        return "string"
    return str(schema["type"])
