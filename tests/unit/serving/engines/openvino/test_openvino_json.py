# SPDX-License-Identifier: Apache-2.0
"""JSON schemas whose white space is written out: the same values, and nothing between them that a model chooses."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from serving.engines.openvino.openvino_json import json_format, without_white_space

STRING, NUMBER = {"type": "string"}, {"type": "integer"}


def texts(found: dict[str, Any]) -> Iterator[str]:
    """Yield the texts that a format allows; a schema of the library's is the text of its type."""
    match found["type"]:
        case "const_string":
            yield found["value"]
        case "sequence":
            yield from map("".join, itertools.product(*([*texts(each)] for each in found["elements"])))
        case "or":
            for each in found["elements"]:
                yield from texts(each)
        case "grammar":
            assert found["grammar"] == 'root ::= ""'
            yield ""
        case "json_schema":
            yield f"({found['json_schema'].get('type', 'any')})"


def object_of(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required or []}


@pytest.mark.parametrize(
    ("schema", "allowed"),
    [
        pytest.param(
            object_of(["a", "b"], a=STRING, b=NUMBER), {'{"a": (string), "b": (integer)}'}, id="all are required"
        ),
        pytest.param(
            object_of(["b"], a=STRING, b=NUMBER),
            {'{"a": (string), "b": (integer)}', '{"b": (integer)}'},
            id="the first may be left out",
        ),
        pytest.param(
            object_of(a=STRING, b=NUMBER),
            {"{}", '{"a": (string)}', '{"b": (integer)}', '{"a": (string), "b": (integer)}'},
            id="all may be left out",
        ),
        pytest.param(object_of(), {"{}"}, id="none"),
        pytest.param({"type": "object", "additionalProperties": False}, {"{}"}, id="none, as it says"),
        pytest.param(
            object_of(["o"], o=object_of(["ü"], ü=STRING)), {'{"o": {"ü": (string)}}'}, id="an object in an object"
        ),
        pytest.param(
            object_of(["l"], l={"type": "array", "items": NUMBER, "maxItems": 2}),
            {'{"l": []}', '{"l": [(integer)]}', '{"l": [(integer), (integer)]}'},
            id="a short list",
        ),
        pytest.param(
            object_of(["l"], l={"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}),
            {'{"l": [(integer), (integer)]}'},
            id="a list of one length",
        ),
        pytest.param(
            object_of(["p"], p={"anyOf": [object_of(["a"], a=STRING), {"type": "null"}]}),
            {'{"p": {"a": (string)}}', '{"p": (null)}'},
            id="one of several",
        ),
        pytest.param(
            {**object_of(["p"], p={"$ref": "#/$defs/P"}), "$defs": {"P": object_of(["k"], k=NUMBER)}},
            {'{"p": {"k": (integer)}}'},
            id="a reference",
        ),
        pytest.param(object_of(["a"], a={"type": "array", "items": STRING}), {'{"a": (array)}'}, id="any list"),
        pytest.param({"type": "object"}, {"(object)"}, id="any object"),
        pytest.param({**object_of(a=STRING), "additionalProperties": True}, {"(object)"}, id="further properties"),
        pytest.param({**object_of(a=STRING), "maxProperties": 0}, {"(object)"}, id="another word"),
        pytest.param(object_of(["b"], a=STRING), {"(object)"}, id="required and not described"),
        pytest.param(
            object_of(["b"], a=STRING, b=NUMBER, c=STRING, d=STRING),
            {
                f'{{{a}"b": (integer){c}{d}}}'
                for a in ("", '"a": (string), ')
                for c in ("", ', "c": (string)')
                for d in ("", ', "d": (string)')
            },
            id="around one that must be there",
        ),
        pytest.param(object_of([], **{f"p{i}": STRING for i in range(30)}), {"(object)"}, id="too many ways"),
    ],
)
def test_an_object_is_written_out(schema: dict[str, Any], allowed: set[str]) -> None:
    assert set(texts(json_format(schema))) == allowed


def test_what_refers_to_itself_keeps_its_definitions() -> None:
    below = {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}
    node = object_of(["left", "right"], left=below, right=below)
    assert json_format({"$defs": {"Node": node}, "$ref": "#/$defs/Node"}) == {
        "type": "json_schema",
        "json_schema": {"$defs": {"Node": node}, "$ref": "#/$defs/Node"},
    }
    listed = object_of(["all"], all={"type": "array", "items": {"$ref": "#/$defs/Node"}})
    leaf = json_format({**listed, "$defs": {"Node": listed}})["elements"][1]["json_schema"]
    assert leaf == {"type": "array", "items": {"$ref": "#/$defs/Node"}, "$defs": {"Node": listed}}


def test_a_schema_of_any_depth_is_looked_at() -> None:
    deep: dict[str, Any] = STRING
    for _ in range(300):
        deep = object_of(["a"], a=deep)
    assert json_format(deep) == {"type": "json_schema", "json_schema": deep}


def test_a_structural_tag_has_its_schemas_written_out_and_the_rest_as_it_is() -> None:
    tag = {"type": "tag", "begin": "<a>", "end": "</a>", "content": json_format({"type": "object"})}
    tag["content"] = {"type": "json_schema", "json_schema": object_of(["a"], a=STRING)}
    guide = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<a>"], "tags": [tag]}}
    kind, text = without_white_space("structural_tag", json.dumps(guide))
    assert kind == "structural_tag"
    [found] = json.loads(text)["format"]["tags"]
    assert {**found, "content": None} == {**tag, "content": None}
    assert [*texts(found["content"])] == ['{"a": (string)}']


def test_of_many_schemas_the_later_ones_stay_as_they_are() -> None:
    parts = [{"type": "json_schema", "json_schema": object_of(["a"], a=STRING)} for _ in range(100)]
    guide = {"type": "structural_tag", "format": {"type": "or", "elements": parts}}
    found = json.loads(without_white_space("structural_tag", json.dumps(guide))[1])["format"]["elements"]
    assert [each["type"] for each in found] == ["sequence"] * 64 + ["json_schema"] * 36


@pytest.mark.parametrize("depth", [400, 900, 30_000])
@pytest.mark.parametrize("kind", ["json_schema", "structural_tag"])
def test_what_is_nested_too_deep_is_left_to_the_library(kind: str, depth: int) -> None:
    guide = '{"a": ' * depth + "1" + "}" * depth
    assert without_white_space(kind, guide) == (kind, guide)


@pytest.mark.parametrize("guide", ['{"type', "3", "[]", "true", '{"type": "integer"}'])
def test_what_is_no_object_is_left_to_the_library(guide: str) -> None:
    assert without_white_space("json_schema", guide) == ("json_schema", guide)
    assert without_white_space("regex", guide) == ("regex", guide)
