# SPDX-License-Identifier: Apache-2.0
"""The rules for words and docstrings: each stands alone; ruff's D400 and D401 hold the full stop and the verb."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[3]
BANNED_FIRST = frozenset(["Of", "So", "Those", "That", "As", "Who", "Whether", "All", "One", "What", "Where"])
LEANS_ON_OTHERS = re.compile(r"\b(as|see) above\b|^The same\b", re.IGNORECASE)


# What may be one in a file's text: only there the file is parsed, which takes seconds for all of them.
_WORDS = "|".join(sorted(BANNED_FIRST))
SUSPECT = re.compile(rf"""["'][\s`:,;.]*(?:(?:{_WORDS})|(?i:The same))\b|\b(?i:as|see)\x20(?i:above)\b""")


def _wrong(path: Path) -> Iterator[str]:
    content = path.read_text()
    if not SUSPECT.search(content):
        return
    for node in ast.walk(ast.parse(content)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        text = ast.get_docstring(node)
        if text and (text.split()[0].strip("`:,;.") in BANNED_FIRST or LEANS_ON_OTHERS.search(text)):
            yield f"{path.relative_to(PROJECT)}:{node.body[0].lineno}: {text.splitlines()[0]}"


def test_no_docstring_begins_in_the_middle_of_a_sentence_or_leans_on_another() -> None:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    assert [wrong for name in listed.split() for wrong in _wrong(PROJECT / name)] == []


# Words of this tree alone, in place of which the field has a word: engine server, ingress, response workers, queue ...
OLD_WORDS = re.compile(
    r"switchboard|\bintake\b|lifeline|reply.?lane|chunk.?gather|\bcensus|pinned.?release|waiting.?line|setback|likeness"
    r"|\bguests?\b|lost_version|degradation step",
    re.IGNORECASE,
)


def test_code_and_documents_use_the_words_of_the_field() -> None:
    asked = ["git", "ls-files", "*.py", "*.md", ":!benchmarks/results", f":!{Path(__file__).relative_to(PROJECT)}"]
    listed = subprocess.run(asked, cwd=PROJECT, check=True, capture_output=True, text=True).stdout
    found = {name: OLD_WORDS.findall((PROJECT / name).read_text(encoding="utf-8")) for name in listed.split()}
    assert {name: words for name, words in found.items() if words} == {}
