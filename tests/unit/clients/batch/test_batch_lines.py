# SPDX-License-Identifier: Apache-2.0
"""A line of a batch: what is carried to the server, what is refused and how, and what its answer looks like."""

import json
from pathlib import Path
from typing import Any

import pytest
from batch_files import chat, completion, write_lines

from clients.batch import input_file
from clients.batch.batch_line import asked_by, custom_id_of, parse_line
from clients.batch.input_file import InputFile
from clients.batch.line_error import LineError
from clients.batch.result_lines import answer_line, error_line
from clients.infer_messages import GenerateChunk, GenerateRequest
from clients.openai_api.answer_deltas import AnswerDeltas
from clients.openai_api.answers import answer_body
from clients.openai_api.asked import Asked, Endpoint
from trireme.base.errors import ServerError, SpecError
from trireme.base.project_files import CODE_ROOT

DEMO = CODE_ROOT / "examples/demo_model/target"
BASE = GenerateRequest(text_input="", max_tokens=1, stream=False, priority=3)
LINE = json.dumps(completion("a"))


def asked(line: dict[str, object]) -> Asked:
    return asked_by(parse_line(1, json.dumps(line).encode()), base=BASE, chat_tokens=99)


def request(line: dict[str, object]) -> GenerateRequest:
    (found,) = asked(line).requests
    return found


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        pytest.param("nonsense", "invalid_json", None, id="not JSON"),
        pytest.param("[1]", "invalid_json", None, id="no object"),
        pytest.param("[" * 100_000, "invalid_json", None, id="nested too deep"),
        pytest.param("\xff".encode("latin-1"), "invalid_json", None, id="not UTF-8"),
        pytest.param({"method": "POST"}, "missing_field", "custom_id", id="no custom_id"),
        pytest.param({"custom_id": "", "method": "", "url": ""}, "missing_field", "body", id="no body"),
        pytest.param(completion("") | {"custom_id": ""}, "invalid_value", "custom_id", id="an empty custom_id"),
        pytest.param(completion("a") | {"custom_id": 7}, "invalid_value", "custom_id", id="a number as custom_id"),
        pytest.param(completion("a") | {"method": "GET"}, "invalid_value", "method", id="another method"),
        pytest.param(completion("a") | {"url": "/v1/embeddings"}, "invalid_url", "url", id="another endpoint"),
        pytest.param(completion("a") | {"url": ["/v1/completions"]}, "invalid_url", "url", id="a list as url"),
        pytest.param(completion("a") | {"body": []}, "invalid_value", "body", id="a list as body"),
        pytest.param(completion("a") | {"priority": 1}, "invalid_value", "priority", id="an unknown field"),
    ],
)  # fmt: skip
def test_a_line_that_is_wrong_names_its_field(line: Any, code: str, param: str | None) -> None:
    raw = line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()
    with pytest.raises(LineError) as refused:
        parse_line(3, raw)
    assert (refused.value.code, refused.value.param) == (code, param)


@pytest.mark.parametrize(
    ("line", "param"),
    [
        (completion("a", logprobs=3), "body.logprobs"),
        (completion("a", logprobs=0), "body.logprobs"),  # OpenAI: the chosen token's, so it asks for something
        (completion("a", stream=True), "body.stream"),
        (completion("a", best_of=2), "body.best_of"),
        (completion("a", logit_bias={"50256": -100}), "body.logit_bias"),
        (completion("a", suffix="end"), "body.suffix"),
        (completion("a", wish="luck"), "body.wish"),
        (completion("a", messages=[]), "body.messages"),
        (completion("a", prompt=[1, 2, 3]), "body.prompt"),
        (completion("a", prompt=[[1], [2]]), "body.prompt"),
        (completion("a", prompt=[]), "body.prompt"),
        (completion("a", prompt=None), "body.prompt"),
        (completion("a", prompt=7), "body.prompt"),
        (completion("a", temperature=2.5), "body.temperature"),
        (completion("a", temperature="hot"), "body.temperature"),
        (completion("a", top_p=0), "body.top_p"),
        (completion("a", max_tokens=0), "body.max_tokens"),
        (completion("a", n=129), "body.n"),
        (completion("a", stop=[1]), "body.stop[0]"),
        (completion("a", presence_penalty=3), "body.presence_penalty"),
        (chat("a", logprobs=True), "body.logprobs"),
        (chat("a", tools=[{"type": "function"}]), "body.tools"),
        (chat("a", content=[{"type": "image_url", "image_url": {}}]), "body.messages[0].content[0].type"),
        (chat("a", content=None), "body.messages[0]"),
        (chat("a", messages=[]), "body.messages"),
        (chat("a", messages=[{"role": "user", "content": "x", "mood": "good"}]), "body.messages[0]"),
        (chat("a", response_format={"type": "yaml"}), "body.response_format"),
        (chat("a", response_format={"type": "json_schema"}), "body.response_format"),
        (chat("a", max_tokens=3, max_completion_tokens=4), "body.max_tokens"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_parameter_that_is_not_carried_is_refused_by_name(line: dict[str, object], param: str) -> None:
    with pytest.raises(LineError) as refused:
        asked(line)
    assert refused.value.param == param
    assert param in refused.value.message


def test_what_asks_for_nothing_passes() -> None:
    nothing = {
        "stream": False,
        "echo": False,
        "logit_bias": {},
        "best_of": 1,
        "logprobs": None,
        "suffix": None,
        "user": "u",
    }
    assert request(completion("a", **nothing)) == request(completion("a"))


def test_a_completion_has_openai_s_defaults() -> None:
    found = request(completion("a", prompt="hi"))
    assert (found.text_input, found.max_tokens, found.temperature, found.top_p) == ("hi", 16, 1.0, 1.0)
    assert (found.stream, found.priority) == (False, 3)


def test_a_completion_s_parameters_reach_the_contract_s_fields() -> None:
    found = request(
        completion(
            "a", max_tokens=7, temperature=0.5, top_p=0.9, n=3, stop=["x", "y"], seed=11, presence_penalty=1,
            frequency_penalty=-0.5,
        )
    )  # fmt: skip
    assert (found.max_tokens, found.temperature, found.top_p, found.num_return_sequences) == (7, 0.5, 0.9, 3)
    assert (found.stop_words, found.seed) == (("x", "y"), 11)
    assert (found.presence_penalty, found.frequency_penalty) == (1.0, -0.5)


def test_temperature_zero_is_greedy_whatever_top_p_says() -> None:
    found = request(completion("a", temperature=0, top_p=0.5))
    assert (found.temperature, found.top_p) == (None, None)


def test_several_prompts_are_several_requests() -> None:
    assert [one.text_input for one in asked(completion("a", prompt=["x", "y"])).requests] == ["x", "y"]


def test_messages_are_sent_with_their_parts_joined() -> None:
    found = request(chat("a", content=[{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]))
    assert (found.messages, found.max_tokens) == ([{"role": "user", "content": "xy"}], 99)
    assert request(chat("a", max_completion_tokens=5)).max_tokens == 5


def test_a_response_format_becomes_a_guide() -> None:
    found = request(chat("a", response_format={"type": "json_object"}))
    assert (found.guided_decoding_guide_type, found.guided_decoding_guide) == ("json_schema", '{"type":"object"}')
    schema = {"type": "object"}
    found = request(chat("a", response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}))
    assert found.guided_decoding_guide_type == "json_schema"
    assert json.loads(found.guided_decoding_guide or "") == schema


def scanned(path: Path, lines: list[object]) -> InputFile:
    source = InputFile(write_lines(path, lines))
    source.scan()
    return source


def test_blank_lines_are_no_requests_and_the_last_newline_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_text(f"\n{LINE}\n  \n{LINE}")
    with InputFile(path) as source:
        source.scan()
        assert (source.num_requests, source.last_line) == (2, 4)
        assert [number for number, _ in source.lines()] == [2, 4]


def test_an_empty_file_has_no_requests(tmp_path: Path) -> None:
    with scanned(tmp_path / "in.jsonl", []) as source:
        assert (source.num_requests, source.last_line, list(source.lines())) == (0, 0, [])


def test_a_repeated_custom_id_is_found_at_any_distance(tmp_path: Path) -> None:
    lines: list[object] = [completion(str(number)) for number in range(1000)]
    lines[700], lines[900], lines[5] = completion("3"), completion("3"), "nonsense"
    with scanned(tmp_path / "in.jsonl", lines) as source:
        found = {number: first for number in range(1, 1001) if (first := source.first_with_its_id(number))}
    assert found == {701: 4, 901: 4}


def test_equal_digests_alone_make_no_duplicate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_file, "_digest", lambda _: 7)
    with scanned(tmp_path / "in.jsonl", [completion("a"), completion("b"), completion("a")]) as source:
        assert [source.first_with_its_id(number) for number in (1, 2, 3)] == [None, None, 1]


def test_a_line_that_is_too_long_is_skipped_and_the_next_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_file, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(input_file, "_SKIP_BYTES", 7)
    with scanned(tmp_path / "in.jsonl", [completion("a" * 500), completion("b"), "x" * 100, "x" * 99]) as source:
        lines = list(source.lines())
    assert [(number, line is None) for number, line in lines] == [(1, True), (2, False), (3, True), (4, False)]
    assert custom_id_of(lines[1][1]) == "b"
    with pytest.raises(LineError) as refused:
        parse_line(1, None)
    assert refused.value.code == "line_too_long"


def test_an_input_that_changes_while_it_is_read_is_noticed(tmp_path: Path) -> None:
    with scanned(tmp_path / "in.jsonl", [completion("a"), completion("b")]) as source:
        lines = source.lines()
        next(lines)
        with source.path.open("a") as file:
            file.write(LINE)
        with pytest.raises(SpecError, match="has changed"):
            list(lines)


def test_an_input_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read"):
        InputFile(tmp_path / "missing")
    with pytest.raises(SpecError, match="is not a file"):
        InputFile(Path("/dev/null"))


def chunk(text: str, index: int | None = None, *, tokens: int = 2, reason: str | None = "stop") -> GenerateChunk:
    return GenerateChunk(text, reason, 5, tokens, is_final=True, received_ns=0, sequence_index=index)


def test_an_answer_counts_each_prompt_once_and_every_sequence() -> None:
    line = parse_line(1, json.dumps(completion("a", prompt=["x", "y"], n=2)).encode())
    found = asked_by(line, base=BASE, chat_tokens=1)
    received = [[chunk("x1", 1), chunk("x0", 0)], [chunk("y0", 0, tokens=3), chunk("y1", 1, reason="length")]]
    body, usage = answer_body(found, received, AnswerDeltas(found), answer_id="r", now_s=7.9, model="m")
    assert body["choices"] == [
        {"index": 0, "text": "x0", "logprobs": None, "finish_reason": "stop"},
        {"index": 1, "text": "x1", "logprobs": None, "finish_reason": "stop"},
        {"index": 2, "text": "y0", "logprobs": None, "finish_reason": "stop"},
        {"index": 3, "text": "y1", "logprobs": None, "finish_reason": "length"},
    ]
    assert body["usage"] == {"prompt_tokens": 5 + 5, "completion_tokens": 2 + 2 + 3 + 2, "total_tokens": 19}
    assert (usage.total_tokens, body["created"], body["object"]) == (19, 7, "text_completion")


def test_an_answer_without_its_end_is_the_server_s_error() -> None:
    found = Asked(endpoint=Endpoint.CHAT, requests=(BASE,))
    received = [[chunk("x", reason=None)]]
    with pytest.raises(ServerError, match="finish_reason"):
        answer_body(found, received, AnswerDeltas(found), answer_id="r", now_s=0.0, model="m")


def test_the_lines_of_the_results_are_openai_s() -> None:
    response = {"status_code": 200, "request_id": "r", "body": {"id": "x"}}
    answered = {"id": "r", "custom_id": "a", "response": response, "error": None}
    assert json.loads(answer_line("r", "a", {"id": "x"})) == answered
    refused = json.loads(error_line("r", 4, "a", LineError("no", code="c", param="p", status=400)))
    said = {"message": "no", "type": "invalid_request_error", "param": "p", "code": "c"}
    assert refused["response"] == {"status_code": 400, "request_id": "r", "body": {"error": said}}
    assert refused["error"] == {"code": "c", "message": "no", "param": "p", "line": 4}
    assert json.loads(error_line("r", 4, None, LineError("no", code="c")))["response"] is None
