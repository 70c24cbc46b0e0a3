# SPDX-License-Identifier: Apache-2.0
"""The page of error codes and their reasons: the tree of `trireme.base.errors`, and the calls that make errors."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from documents.reference.cells import cell
from serving.frontend.http.http_answers import answer_to
from trireme.base import errors
from trireme.base.errors import ServingError
from trireme.base.project_files import CODE_ROOT
from trireme.base.text_tables import markdown_table
from trireme.commands import exit_code

_INTRODUCTION = """# Error codes

The text of every error holds one token, `[CODE key=value ...]`. A sentence follows with the value, what is allowed and
the next step. Over gRPC the text is the error of the response or the stream; over HTTP the text is `error` of the JSON
object. `trireme.errors` has the exceptions.
"""
_REASONS = """## Reasons

`reason` in a token says more than the code. `retry_after_ms`, where a token has it, says when to try again.
"""
_OF_COMMANDS = ("BUILD", "ACCESS_DENIED")  # no server answers with them
_ROOMS = {"serving": "server", "clients": "client", "gateway": "gateway", "trireme/base": "client"}


def render() -> str:
    """Return the page."""
    codes = markdown_table(["code", "class", "HTTP", "exit code", "meaning"], map(_code_row, _tree(ServingError)))
    reasons = markdown_table(["code", "reason", "said by", "text"], _reason_rows())
    return f"{_INTRODUCTION}\n{codes}\n\n{_REASONS}\n{reasons}\n"


def _tree(error: type[ServingError]) -> Iterator[type[ServingError]]:
    yield error
    for below in error.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _tree(below)


def _code_row(error: type[ServingError]) -> list[str]:
    example = error("")
    described = inspect.getdoc(error) or ""
    meaning = " ".join(described.split("\n\nArgs:")[0].split())
    status = "" if error.code in _OF_COMMANDS else str(answer_to(example).status)
    return [f"`{error.code}`", f"`{error.__name__}`", status, str(exit_code(example)), cell(meaning)]


def _reason_rows() -> list[list[str]]:
    """Return a row for each code, reason and side, with the first text that has them, sorted."""
    known = {error.__name__: error.code for error in _tree(ServingError)}
    found: dict[tuple[str, str, str], str] = {}
    for room, side in _ROOMS.items():
        for path in sorted((CODE_ROOT / room).rglob("*.py")):
            for name, reason, text in _calls(path, known):
                key = (known[name], reason, side)
                found[key] = found.get(key) or text
    return [[f"`{code}`", f"`{reason}`", side, cell(text)] for (code, reason, side), text in sorted(found.items())]


def _calls(path: Path, known: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield class, reason and text of each call that makes an error whose reason is written there."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.func.id not in known:
            continue
        for keyword in node.keywords:
            if keyword.arg == "reason" and isinstance(keyword.value, ast.Constant):
                yield node.func.id, str(keyword.value.value), _text(node.args[0]) if node.args else ""


def _text(message: ast.expr) -> str:
    """Return a message as it is written; what is put in when the error is made becomes three points."""
    if isinstance(message, ast.Constant):
        return str(message.value)
    if isinstance(message, ast.JoinedStr):
        return "".join(_text(part) if isinstance(part, ast.Constant) else "..." for part in message.values)
    return ""
