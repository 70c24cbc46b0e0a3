# SPDX-License-Identifier: Apache-2.0
"""Files of batch lines and their results, for the tests of `trireme batch`."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def completion(custom_id: str, prompt: object = "hi", **body: object) -> dict[str, object]:
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": {"prompt": prompt, **body}}


def chat(custom_id: str, content: object = "hi", **body: object) -> dict[str, object]:
    messages = [{"role": "user", "content": content}]
    body = {"messages": messages, **body}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def write_lines(path: Path, lines: Iterable[object]) -> Path:
    """Write a file with one line each; text as it is, anything else as JSON."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def results_of(path: Path) -> dict[str | None, Any]:
    """Return the results by custom_id; a line that is torn or there twice fails."""
    text = path.read_text()
    assert text.endswith("\n")
    results = [json.loads(line) for line in text.splitlines()]
    ids = [result["id"] for result in results]
    assert len(ids) == len(set(ids))
    return {result["custom_id"]: result for result in results}
