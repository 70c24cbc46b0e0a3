# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

import pytest

from build_engines.evaluation.tasks import Item, Kind, load_items, sample
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

DEMO_MODEL = CODE_ROOT / "examples" / "demo_model"
sys.path.insert(0, str(DEMO_MODEL))

from corpus import training_documents  # noqa: E402
from write_tasks import calibration, lines, tasks  # noqa: E402


def test_the_committed_tasks_are_what_the_script_writes() -> None:
    assert (DEMO_MODEL / "tasks.jsonl").read_text(encoding="utf-8") == lines(tasks())
    assert (DEMO_MODEL / "calibration.jsonl").read_text(encoding="utf-8") == lines(calibration())


def test_every_line_is_an_item_and_every_kind_is_there() -> None:
    items = load_items(DEMO_MODEL / "tasks.jsonl")
    assert {item.kind for item in items} == set(Kind)
    assert {item.group for item in items if item.task == "sentences"} == {
        "en", "zh", "ja", "ar", "hi", "es", "fr", "de", "emoji",
    }  # fmt: skip


def test_a_needle_stands_once_in_its_prompt() -> None:
    needles = [item for item in load_items(DEMO_MODEL / "tasks.jsonl") if item.kind is Kind.NEEDLE]
    assert all(f"named{item.expected}." in item.prompt for item in needles)
    assert all(item.prompt.endswith("In the evening,") for item in needles)


def test_nothing_that_is_held_out_is_calibrated_with() -> None:
    held_out = {item.prompt for item in load_items(DEMO_MODEL / "tasks.jsonl") if item.task in ("facts", "sums")}
    texts = [row["text"] for row in calibration()]
    assert not [text for text in texts for prompt in held_out if text.startswith(prompt)]
    assert texts[0].startswith(next(training_documents(77)).prompt)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"task": "x", "kind": "exact", "prompt": "?", "answer": "a"}', "line 2.*answer"),
        ('{"task": "x", "kind": "guess", "prompt": "?"}', "line 2.*guess"),
        ('{"task": "x", "kind": "exact", "expected": "a"}', "line 2: an item of kind exact needs prompt"),
        ('{"task": "x", "kind": "text", "prompt": "?"}', "line 2: an item of kind text needs expected"),
        ("[]", "line 2"),
    ],
)
def test_a_line_that_is_no_item_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"task": "x", "kind": "open", "prompt": "?"}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(SpecError, match=complaint):
        load_items(file)


def test_a_file_without_items_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text("\n")
    with pytest.raises(SpecError, match="has no items"):
        load_items(tmp_path / "tasks.jsonl")


def test_a_sample_has_some_of_every_group() -> None:
    items = [Item("t", Kind.OPEN, group, f"{group}{number}") for group in ("en", "zh") for number in range(9)]
    chosen = sample(items, 3, seed=1)
    assert [item.group for item in chosen] == ["en"] * 3 + ["zh"] * 3
    assert chosen == sample(items, 3, seed=1)
    assert chosen != sample(items, 3, seed=2)
