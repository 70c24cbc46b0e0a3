# SPDX-License-Identifier: Apache-2.0
"""The rendered text is protobuf text: Google's own parser reads back what went in."""

from collections.abc import Mapping

import pytest
from google.protobuf import struct_pb2, text_format
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from ensemble_configs.render.pbtxt import Symbol, to_pbtxt


def parsed(message: Mapping[str, object]) -> model_config_pb2.ModelConfig:
    return text_format.Parse(to_pbtxt(message), model_config_pb2.ModelConfig())


def test_every_kind_of_value_is_read_back() -> None:
    message = {
        "name": "m",
        "max_batch_size": 0,
        "input": [
            {"name": "a", "data_type": Symbol("TYPE_INT32"), "dims": [1, -1], "reshape": {"shape": []}},
            {"name": "b", "data_type": Symbol("TYPE_STRING"), "dims": [2], "optional": True},
        ],
        "model_transaction_policy": {"decoupled": False},
        "dynamic_batching": {},
        "parameters": [{"key": "k", "value": {"string_value": "v"}}],
        "instance_group": [{"count": 1, "kind": Symbol("KIND_CPU"), "profile": ["x", "y"]}],
        "optimization": {"priority": Symbol("PRIORITY_MAX")},
    }
    config = parsed(message)
    assert config.name == "m"
    assert [list(tensor.dims) for tensor in config.input] == [[1, -1], [2]]
    assert [tensor.optional for tensor in config.input] == [False, True]
    assert config.input[0].HasField("reshape")
    assert list(config.input[0].reshape.shape) == []
    assert config.HasField("dynamic_batching")
    assert config.HasField("model_transaction_policy")
    assert config.parameters["k"].string_value == "v"
    assert list(config.instance_group[0].profile) == ["x", "y"]
    assert config.optimization.priority == model_config_pb2.ModelOptimizationPolicy.PRIORITY_MAX


def test_a_zero_is_written_out_because_triton_needs_it() -> None:
    assert to_pbtxt({"max_batch_size": 0}) == "max_batch_size: 0\n"


def test_it_is_written_for_people_too() -> None:
    message = {"input": [{"name": "a", "dims": [1, 2]}], "empty": {}, "is": True, "repeated": ["x", "y"]}
    assert to_pbtxt(message) == (
        'input {\n  name: "a"\n  dims: [1, 2]\n}\nempty {}\nis: true\nrepeated: "x"\nrepeated: "y"\n'
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_read_back_as_it_was(text: str) -> None:
    assert parsed({"name": text}).name == text


@pytest.mark.parametrize(
    "text", ['"', "\\", "\n", "\t", "\0", "\x7f", "é", "终", "😀", "\\u0041", "a'b", "#", "{}", "${x}"]
)
def test_what_has_a_meaning_of_its_own_is_escaped(text: str) -> None:
    rendered = to_pbtxt({"name": text})
    assert rendered.count("\n") == 1, "one field, one line"
    assert parsed({"name": text}).name == text


@given(st.floats(allow_nan=False) | st.integers(-(2**53), 2**53))
def test_numbers_are_read_back_as_they_were(number: float) -> None:
    text = to_pbtxt({"number_value": number})
    value = text_format.Parse(text, struct_pb2.Value())
    assert value.number_value == number


@pytest.mark.parametrize("value", [None, b"bytes", {1, 2}, object()])
def test_what_a_config_cannot_hold_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="a config field holds text, numbers, symbols"):
        to_pbtxt({"name": value})
