# SPDX-License-Identifier: Apache-2.0
"""The file of held-out prompts: what is read, and what is refused by line, field and value."""

import json
from pathlib import Path

import pytest

from clients.rollout.records.held_out import MAX_FILE_BYTES, MAX_PROMPTS, Prompt, held_out_in, parse_prompts, prompts_of
from trireme.base.errors import SpecError


def write(folder: Path, text: str) -> Path:
    file = folder / "prompts.jsonl"
    file.write_text(text, encoding="utf-8")
    return file


def test_a_prompt_without_a_name_is_called_by_its_line() -> None:
    text = '{"prompt": "2 + 2 =", "reference": "4", "name": "sum", "max_tokens": 3}\n\n{"prompt": "法国的首都？"}\n'
    assert parse_prompts(text.encode(), Path("p")) == (
        Prompt(name="sum", text="2 + 2 =", reference="4", max_tokens=3),
        Prompt(name="3", text="法国的首都？", reference=None, max_tokens=64),
    )


def test_a_line_may_end_as_on_windows_and_the_last_without_an_end() -> None:
    prompts = parse_prompts(b'{"prompt": "a"}\r\n{"prompt": "b"}', Path("p"))
    assert [prompt.text for prompt in prompts] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "is not JSON: Expecting property name .* .column 2."),
        ("[1]", r"must be a JSON object with prompt, .*got \[1\]"),
        ('{"prompt": "a", "expected": "b"}', "'expected' is not a field.*allowed are prompt, reference"),
        ('{"reference": "b"}', "prompt is missing"),
        ('{"prompt": " "}', "prompt must be text that is not empty, got ' '"),
        ('{"prompt": 7}', "prompt must be text that is not empty, got 7"),
        ('{"prompt": "a", "prompt": "b"}', "'prompt' stands twice"),
        ('{"prompt": "a\\ud800"}', "prompt .*lone surrogate"),
        ('{"prompt": "a", "reference": ""}', "reference must be text"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens must be a whole number from 1 to 1024, got 0"),
        ('{"prompt": "a", "max_tokens": true}', "max_tokens .*got True"),
        ('{"prompt": "a", "max_tokens": 1e1}', "max_tokens .*got 10.0"),
        ('{"prompt": "a", "max_tokens": ' + "9" * 5000 + "}", "is not JSON"),
        ('{"prompt": "a", "name": "a\\nb"}', "name must be 1 to 80 printable characters"),
        ('{"prompt": "a", "name": "first"}', "name 'first' is that of line 1 already"),
        ('{"prompt": "a", "name": ""}', "name must be"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(line: str, complaint: str) -> None:
    text = '{"prompt": "a", "name": "first"}\n' + line
    with pytest.raises(SpecError, match=f"^.INVALID_SPEC .*p.jsonl, line 2: .*{complaint}.*start again"):
        parse_prompts(text.encode(), Path("p.jsonl"))


def test_a_line_without_a_name_may_not_meet_a_name_that_is_its_number() -> None:
    with pytest.raises(SpecError, match="line 2: name '2' is that of line 1 already"):
        parse_prompts(b'{"prompt": "a", "name": "2"}\n{"prompt": "b"}', Path("p"))


def test_bytes_that_are_no_text_are_named() -> None:
    with pytest.raises(SpecError, match="line 1: it is not JSON in UTF-8"):
        parse_prompts(b'{"prompt": "\xff"}', Path("p"))


@pytest.mark.parametrize(("text", "complaint"), [("", "has no prompts"), ("\n \n", "has no prompts")])
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(SpecError, match=complaint):
        held_out_in(write(tmp_path, text), num_at_a_time=2)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"cannot read the prompts .*No such file.*name a JSONL file"):
        held_out_in(tmp_path / "none", num_at_a_time=2)
    with pytest.raises(SpecError, match="are not a file"):
        held_out_in(tmp_path, num_at_a_time=2)


def test_a_file_is_bounded_by_bytes_and_by_prompts(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="more than 8 MiB"):
        held_out_in(write(tmp_path, " " * (MAX_FILE_BYTES + 1)), num_at_a_time=2)
    with pytest.raises(SpecError, match="more than 2000 prompts"):
        held_out_in(write(tmp_path, '{"prompt": "a"}\n' * (MAX_PROMPTS + 1)), num_at_a_time=2)


def test_the_plan_finds_its_file_from_any_folder_and_only_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path, json.dumps({"prompt": "a"}))
    held_out = held_out_in(Path(file.name), num_at_a_time=3)
    assert (held_out.num_prompts, held_out.num_at_a_time) == (1, 3)
    monkeypatch.chdir("/")
    assert [prompt.text for prompt in prompts_of(held_out)] == ["a"]
    write(tmp_path, json.dumps({"prompt": "b"}))
    with pytest.raises(SpecError, match=r"has changed since the rollout began.*start another rollout"):
        prompts_of(held_out)
    file.unlink()
    with pytest.raises(SpecError, match="No such file"):
        prompts_of(held_out)
