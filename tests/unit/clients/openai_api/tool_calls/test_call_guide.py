# SPDX-License-Identifier: Apache-2.0
"""Guides that hold a model to calls: the demo model, which never saw a tool, calls in each style, and is read."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from jsonschema_rs import validate
from tokenizers import Tokenizer

from clients.openai_api.tool_calls.answer_reader import AnswerReader
from clients.openai_api.tool_calls.call_guide import Guide, call_guide, strict_guide
from clients.openai_api.tool_calls.deltas import Arguments, CallBegun, Content, Reasoning
from clients.openai_api.tool_calls.reader_choice import Style, call_reader
from clients.openai_api.tool_calls.reasoning import ReasoningReader
from ensemble_configs.spec.engine.openvino_spec import OpenVinoEngineSpec
from serving.engines.providers import create_engine
from serving.engines.seam.base import Engine, FinishReason, GenerationRequest, SamplingParams
from trireme.base.project_files import CODE_ROOT

DEMO_MODEL = CODE_ROOT / "examples/demo_model"
TOKENIZER = Tokenizer.from_file(str(DEMO_MODEL / "target/tokenizer.json"))
PROMPT: list[int] = TOKENIZER.encode("What is the weather in Rome?").ids
SAMPLED = {"top_p": 0.95, "temperature": 1.5, "seed": 5}
TOOLS: dict[str, Mapping[str, object]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "town": {"enum": ["Rome", "Paris", "Lima"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "place": {"$ref": "#/$defs/Place"},
        },
        "required": ["town", "place"],
        "$defs": {"Place": {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]}},
    },
    "stop": {},
    "go": {"type": "object"},
}
FLAT: dict[str, Mapping[str, object]] = {
    "get_weather": {"type": "object", "properties": {"town": {"enum": ["Rome", "Lima"]}}, "required": ["town"]},
    "stop": {},
}

LEAST = [2, pytest.param(6, marks=pytest.mark.soak)]  # answers, of which one has what is asked of one


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    spec = {"provider": "openvino", "dir": DEMO_MODEL / "openvino/target", "num_threads": 1, "num_kv_blocks": 128}
    created = create_engine(OpenVinoEngineSpec.model_validate(spec))
    yield created
    created.close()


def written(engine: Engine, guide: Guide, **sampling: object) -> tuple[str, FinishReason | None]:
    """Return what the model writes by a guide, and why it ends."""
    given = {"max_tokens": 400, "guide_type": guide.guide_type, "guide": guide.guide} | sampling
    engine.add(GenerationRequest(key=1, input_ids=PROMPT, sampling=SamplingParams(**given)))  # type: ignore[arg-type]
    ids: list[int] = []
    reason = None
    while engine.has_work:
        for chunk in engine.step():
            assert chunk.error is None
            ids += chunk.token_ids
            reason = chunk.finish_reason or reason
    return TOKENIZER.decode(ids), reason


def calls_in(text: str, reader: AnswerReader) -> tuple[list[tuple[str, str]], str, str]:
    """Return the calls of an answer with their arguments, its content and its reasoning."""
    calls: list[tuple[str, str]] = []
    content = thought = ""
    for delta in [*reader.read(text), *reader.end()]:
        match delta:
            case CallBegun(_, _, name):
                calls.append((name, ""))
            case Arguments(index, piece):
                calls[index] = (calls[index][0], calls[index][1] + piece)
            case Content(piece):
                content += piece
            case Reasoning(piece):
                thought += piece
    return calls, content, thought


def check(calls: list[tuple[str, str]], tools: Mapping[str, Mapping[str, object]]) -> None:
    for name, arguments in calls:
        validate(dict(tools[name]), json.loads(arguments or "{}"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tools", [TOOLS, FLAT], ids=["several", "plain"])
@pytest.mark.parametrize("style", Style)
def test_the_model_makes_one_call_with_arguments_that_fit(
    engine: Engine, style: Style, tools: dict[str, Mapping[str, object]], how: dict[str, object]
) -> None:
    text, reason = written(engine, call_guide(style, tools, is_single=True), **how)
    calls, content, _ = calls_in(text, AnswerReader(call_reader(style, tools, max_calls=1)))
    assert len(calls) == 1, text
    assert content == ""
    assert reason is FinishReason.STOP
    check(calls, tools)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("style", "name"),
    # Not Qwen3-Coder's with an object in an argument: its white space is the library's, and this model writes no end.
    [(style, name) for style in Style for name in TOOLS if (style, name) != (Style.QWEN3_CODER, "get_weather")],
)
def test_a_tool_that_is_named_is_the_one_that_is_called(engine: Engine, style: Style, name: str) -> None:
    tools = {name: TOOLS[name]}
    text, _ = written(engine, call_guide(style, tools, is_single=True))
    [(called, arguments)], _, _ = calls_in(text, AnswerReader(call_reader(style, tools)))
    assert called == name
    validate(dict(tools[name]), json.loads(arguments or "{}"))


@pytest.mark.slow
@pytest.mark.parametrize("style", [Style.HERMES, Style.MISTRAL, Style.QWEN3_CODER])
@pytest.mark.parametrize("least", LEAST)
def test_there_may_be_several_calls_and_nothing_between_them(engine: Engine, style: Style, least: int) -> None:
    found: list[int] = []
    for seed in range(6):
        if len(found) >= least and max(found) > 1:
            break
        guide = call_guide(style, FLAT, is_single=False)
        text, reason = written(engine, guide, temperature=9.0, top_p=1.0, seed=seed)
        calls, content, _ = calls_in(text, AnswerReader(call_reader(style, FLAT)))
        found.append(len(calls))
        if reason is FinishReason.STOP:
            assert content == "", text
            check(calls, FLAT)
    assert min(found) >= 1
    assert max(found) > 1


@pytest.mark.slow
@pytest.mark.parametrize("begins_inside", [False, True], ids=["may think", "thinks"])
@pytest.mark.parametrize("style", Style)
def test_a_model_that_reasons_thinks_first_and_then_calls(engine: Engine, style: Style, *, begins_inside: bool) -> None:
    guide = call_guide(style, FLAT, is_single=True, is_reasoning=True, begins_inside=begins_inside)
    # The demo model never ends its thoughts by itself, and may think for as long as its tokens last.
    text, reason = written(engine, guide, max_tokens=100)
    reader = AnswerReader(ReasoningReader(begins_inside=begins_inside), call_reader(style, FLAT))
    calls, content, thought = calls_in(text, reader)
    assert content == ""
    if reason is FinishReason.STOP:
        assert len(calls) == 1
        check(calls, FLAT)
    else:
        assert thought


def test_llama_s_calls_are_a_plain_schema_which_compiled_engines_take_too() -> None:
    assert call_guide(Style.LLAMA, FLAT, is_single=True).guide_type == "json_schema"
    assert (
        call_guide(Style.LLAMA, TOOLS, is_single=True).guide_type == "structural_tag"
    )  # a reference is its own root's


def test_what_a_schema_leaves_out_is_an_object() -> None:
    tools: dict[str, Mapping[str, Any]] = {
        "a": {"properties": {"x": {}}},
        "b": {"anyOf": [{"type": "object"}]},
        "c": {"type": "object", "description": "none"},
        "d": {"type": "object", "additionalProperties": {"type": "string"}},
        "e": {"type": "nonsense"},  # the server says what is wrong with it
    }
    guide = json.loads(call_guide(Style.HERMES, tools, is_single=True).guide)
    assert [tag["content"]["json_schema"] for tag in guide["format"]["tags"]] == [
        {"type": "object", "properties": {"x": {}}},
        {"anyOf": [{"type": "object"}]},
        {"type": "object", "properties": {}},
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "nonsense"},
    ]


STRICT_STYLES = [Style.HERMES, Style.MISTRAL, Style.QWEN3_CODER]
BEGINS = {Style.HERMES: "<tool_call>", Style.MISTRAL: "[TOOL_CALLS]", Style.QWEN3_CODER: "<tool_call>"}


def forced(guide: Guide, text: str) -> Guide:
    """Return a guide behind a text, which the demo model, that never saw a tool, would not write by itself."""
    found = json.loads(guide.guide)["format"]
    return Guide(
        "structural_tag",
        json.dumps({
            "type": "structural_tag",
            "format": {
                "type": "sequence",
                "elements": [{"type": "const_string", "value": text}, {**found, "at_least_one": True}],
            },
        }),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("style", STRICT_STYLES)
def test_an_answer_that_calls_nothing_is_the_same_without_strict_functions(engine: Engine, style: Style) -> None:
    guide = strict_guide(style, FLAT, ["get_weather"], is_single=False)
    assert guide is not None
    free, _ = written(engine, Guide(None, None), max_tokens=40)  # type: ignore[arg-type]
    guided, reason = written(engine, guide, max_tokens=40)
    assert guided == free
    assert reason is FinishReason.STOP


@pytest.mark.slow
@pytest.mark.parametrize("style", STRICT_STYLES)
@pytest.mark.parametrize("least", LEAST)
def test_a_call_that_has_begun_fits_the_schema_of_its_function(engine: Engine, style: Style, least: int) -> None:
    tools = {"get_weather": FLAT["get_weather"]}
    guide = strict_guide(style, tools, ["get_weather"], is_single=True)
    assert guide is not None
    found: list[tuple[str, str]] = []
    for seed in range(6):
        if seed >= least and found:
            break
        text, reason = written(engine, forced(guide, "I look. "), temperature=4.0, top_p=1.0, seed=seed)
        assert text.startswith("I look. ")
        if reason is FinishReason.STOP:
            found += calls_in(text, AnswerReader(call_reader(style, tools)))[0]
    assert len(found) >= 1
    check(found, tools)


@pytest.mark.slow
@pytest.mark.parametrize("style", STRICT_STYLES)
def test_a_call_of_a_function_that_is_not_strict_has_its_name_and_any_object(engine: Engine, style: Style) -> None:
    guide = strict_guide(style, FLAT, [], is_single=True)
    assert guide is not None
    for seed in range(4):
        text, reason = written(engine, forced(guide, "Well. "), temperature=2.0, top_p=1.0, seed=seed, max_tokens=80)
        calls, content, _ = calls_in(text, AnswerReader(call_reader(style)))
        assert {name for name, _ in calls} <= FLAT.keys()
        if reason is FinishReason.STOP and style is not Style.QWEN3_CODER:
            assert content.startswith("Well. ")
            assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)


@pytest.mark.slow
@pytest.mark.parametrize("begins_inside", [False, True], ids=["may think", "thinks"])
@pytest.mark.parametrize("style", STRICT_STYLES)
def test_a_strict_guide_of_a_model_that_reasons_compiles(engine: Engine, style: Style, *, begins_inside: bool) -> None:
    guide = strict_guide(
        style, TOOLS, ["get_weather", "stop"], is_single=False, is_reasoning=True, begins_inside=begins_inside
    )
    assert guide is not None
    text, _ = written(engine, guide, max_tokens=20)
    assert text


def test_llama_s_calls_cannot_be_told_from_an_answer_that_is_json() -> None:
    assert strict_guide(Style.LLAMA, FLAT, ["get_weather"], is_single=True) is None
