# SPDX-License-Identifier: Apache-2.0
"""The page of every command with its options, from the command line itself."""

import re
from collections.abc import Iterator
from itertools import groupby

import typer.main
from typer import Context
from typer._click import Command  # typer 0.29 brings click as its own, and has no public name for it
from typer.core import TyperGroup

from documents.reference.cells import cell
from trireme.base.text_tables import markdown_table
from trireme.commands import COMMANDS, command_app

_BLOCK = "\b"  # click's mark of a paragraph whose lines stay as they are


def render() -> str:
    """Return the page: a section for each command, one below for each verb of a command that has several."""
    overview = markdown_table(
        ["command", "what the command does"],
        ([f"[`trireme {name}`](#trireme-{name})", cell(command.help)] for name, command in COMMANDS.items()),
    )
    sections = [section for name in COMMANDS for section in _sections(name)]
    return "\n\n".join(["# Commands", overview, *sections]) + "\n"


def _sections(name: str) -> list[str]:
    command = typer.main.get_command(command_app(name))
    if not isinstance(command, TyperGroup):
        return [f"## trireme {name}", *_described(command, f"trireme {name}")]
    return [f"## trireme {name}", f"{COMMANDS[name].help}.", *_verbs(command, f"trireme {name}")]


def _verbs(command: TyperGroup, path: str) -> Iterator[str]:
    """Yield the sections of a command's verbs, and of those of the commands below it."""
    for verb, below in command.commands.items():
        if isinstance(below, TyperGroup):
            yield from _verbs(below, f"{path} {verb}")
        else:
            yield from (f"### {path} {verb}", *_described(below, f"{path} {verb}"))


def _described(command: Command, path: str) -> list[str]:
    context = Context(command, info_name=path)
    records = [record for one in command.params if (record := one.get_help_record(context)) is not None]
    rows = ([f"`{cell(name)}`", cell(text)] for name, text in records if name != "--help")
    return [*_paragraphs(command.help or ""), *([markdown_table(["option", "meaning"], rows)] if records else [])]


def _paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a help text as Markdown; lines that are indented become a block of code."""
    lines = re.sub(r"\n\n(?=  )", "\n", text.replace(_BLOCK, "")).splitlines()  # examples apart are one block
    for is_code, block in groupby(lines, key=lambda line: line.startswith("  ")):
        if is_code:
            yield "\n".join(["```", *(line.removeprefix("  ") for line in block), "```"])
        else:
            yield from (" ".join(part.split()) for part in "\n".join(block).split("\n\n") if part.strip())
