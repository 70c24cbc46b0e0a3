# SPDX-License-Identifier: Apache-2.0
"""The reader of the facts of `tests/fakes/trtllm_facts` from an installed `tensorrt_llm`; it shows where they differ.

There is a folder of facts for each version that was read. For the container that has the package:
`python3 scripts/trtllm_facts.py` compares with the nearest one, prints a diff and exits 1 where there is drift;
`--write FOLDER` writes what was read. Standard library only. What a running engine says (stats.json) is not read.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import enum
import importlib
import inspect
import json
import re
import sys
import typing
from pathlib import Path
from types import NoneType, UnionType
from typing import Any

FACTS = Path(__file__).parents[1] / "tests" / "fakes" / "trtllm_facts"
REMARKS = ("source", "source_version", "read", "confidence", "note", "status", "backends", "forced")
ARGS_MODULE = "tensorrt_llm.llmapi.llm_args"
CALLS = "llm_calls"

Facts = dict[str, Any]


def known_versions() -> list[str]:
    """Return the versions that there are facts of, oldest first."""
    return sorted((folder.name for folder in FACTS.iterdir() if folder.is_dir()), key=_numbers)


def nearest_facts(version: str) -> Path:
    """Return the folder of facts for an installed version: the newest that is not newer, else the oldest."""
    known = known_versions()
    older = [name for name in known if _numbers(name)[:2] <= _numbers(version)[:2]]
    return FACTS / (older or known[:1])[-1]


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def load_facts(folder: Path) -> dict[str, Facts]:
    """Return the facts that can be read from an installation, by file name."""
    files = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    return {name: facts for name, facts in files.items() if "classes" in facts or name == CALLS}


def without_remarks(facts: Any) -> Any:
    """Return the facts without what people wrote beside them."""
    if isinstance(facts, dict):
        return {key: without_remarks(value) for key, value in facts.items() if key not in REMARKS}
    return facts


def dump(known: dict[str, Facts]) -> dict[str, Facts]:
    """Return what the installed package says about what is in `known`, and about new classes of the LLM's arguments."""
    listed = {name for facts in known.values() for name in facts.get("classes", {})}
    dumped: dict[str, Facts] = {}
    for file, facts in known.items():
        if file == CALLS:
            dumped[file] = {"LLM": _dump_calls(facts["LLM"])}
            continue
        found = {name: _dump_class(name, fact, listed) for name, fact in facts["classes"].items()}
        if file == ARGS_MODULE.rpartition(".")[2]:
            found |= {name: _dump_class(name, {}, listed) for name in _new_classes(listed)}
        dumped[file] = {"classes": {name: fact for name, fact in found.items() if fact is not None}}
        dumped[file] |= {key: value for key, value in without_remarks(facts).items() if key != "classes"}
    return dumped


def _new_classes(listed: set[str]) -> list[str]:
    module = importlib.import_module(ARGS_MODULE)
    return sorted(
        name
        for name, value in vars(module).items()
        if hasattr(value, "model_fields") and value.__module__ == ARGS_MODULE and name not in listed
    )


def _dump_class(name: str, fact: Facts, listed: set[str]) -> Facts | None:
    module = fact.get("module", ARGS_MODULE)
    try:
        cls: Any = importlib.import_module(module)
        for part in (*([fact["within"]] if "within" in fact else []), name):
            cls = getattr(cls, part)
    except (ImportError, AttributeError):
        return None
    if fact.get("kind") == "binding":
        return dict(without_remarks(fact))  # compiled: that it is there is all that can be read
    if fact.get("kind") == "attributes":
        own = getattr(cls, "__dataclass_fields__", {})
        names = [attribute for attribute in fact["names"] if hasattr(cls, attribute) or attribute in own]
        return {"module": module, "kind": "attributes", "names": names}
    bases = [base.__name__ for base in cls.__bases__ if base.__name__ in listed]
    if issubclass(cls, Exception):
        return {"module": module, "kind": "exception", "bases": [base.__name__ for base in cls.__bases__]}
    if hasattr(cls, "model_fields"):
        return {"module": module, "kind": "pydantic", "bases": bases, "fields": _pydantic_fields(cls)}
    return {"module": module, "kind": "dataclass", "bases": bases, "fields": _dataclass_fields(cls)}


def _pydantic_fields(cls: Any) -> Facts:
    own = [name for name in inspect.get_annotations(cls) if name in cls.model_fields]
    fields: Facts = {}
    for name in own:
        field = cls.model_fields[name]
        fields[name] = {"type": type_text(field.annotation)}
        if field.is_required():
            fields[name]["required"] = True
        else:
            fields[name]["default"] = default_fact(field.get_default(call_default_factory=True))
        if field.deprecated:
            fields[name]["deprecated"] = True
    return fields


def _dataclass_fields(cls: Any) -> Facts:
    hints = typing.get_type_hints(cls)
    fields: Facts = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        fields[field.name] = {"type": type_text(hints[field.name])}
        if field.default is not dataclasses.MISSING:
            fields[field.name]["default"] = default_fact(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            fields[field.name]["default"] = default_fact(field.default_factory())
        else:
            fields[field.name]["required"] = True
    return fields


def _dump_calls(known: Facts) -> Facts:
    modules = [module for module in known["modules"] if _has_llm(module)]
    calls: Facts = {"modules": modules}
    llm = importlib.import_module(modules[0]).LLM
    for name in known:
        if name != "modules":
            parameters = list(inspect.signature(getattr(llm, name)).parameters.values())[1:]  # not self
            calls[name] = [_parameter_text(parameter) for parameter in parameters]
    return calls


def _has_llm(module: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), "LLM")
    except ImportError:
        return False


def _parameter_text(parameter: inspect.Parameter) -> str:
    return parameter.name if parameter.default is parameter.empty else f"{parameter.name}={parameter.default!r}"


def type_text(hint: Any) -> str:
    """Return a type in the words of the facts: `Optional[List[int]]`; an enum is the Literal of its values."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return _plain_type_text(hint)
    if origin is typing.Annotated:
        return type_text(arguments[0])
    if origin is typing.Literal:
        return f"Literal[{','.join(map(str, arguments))}]"
    if origin in (typing.Union, UnionType):
        members = [type_text(member) for member in arguments if member is not NoneType]
        text = members[0] if len(members) == 1 else f"Union[{','.join(members)}]"
        return f"Optional[{text}]" if NoneType in arguments else text
    name = origin.__name__
    name = name.capitalize() if name in ("list", "dict", "set", "tuple") else name
    return f"{name}[{','.join(map(type_text, arguments))}]"


def _plain_type_text(hint: Any) -> str:
    if not isinstance(hint, type):
        return str(hint).removeprefix("typing.")
    if issubclass(hint, enum.Enum):
        return f"Literal[{','.join(str(member.value) for member in hint)}]"
    package = hint.__module__.partition(".")[0]
    is_known = package in ("builtins", "typing", "tensorrt_llm", "pathlib", "pydantic")
    return hint.__name__ if is_known else f"{package}.{hint.__name__}"


def default_fact(value: Any) -> Any:
    """Return a default as JSON: an enum's value, `Name()` for an object that was made without arguments."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple | set):
        return [default_fact(item) for item in value]
    if value is None or isinstance(value, str | int | float | bool | dict):
        return value
    if hasattr(type(value), "model_fields") or dataclasses.is_dataclass(value):
        return f"{type(value).__name__}()"
    return repr(value)


def drift(known: dict[str, Facts], dumped: dict[str, Facts]) -> str:
    """Return a unified diff from the facts to what is installed; empty: none."""
    lines: list[str] = []
    for file, facts in known.items():
        wanted = without_remarks(facts)
        if file == CALLS:
            wanted = {"LLM": wanted["LLM"]}
        lines += difflib.unified_diff(_text(wanted), _text(dumped[file]), f"facts/{file}", f"installed/{file}", n=4)
    return "\n".join(lines)


def _text(facts: Facts) -> list[str]:
    lines = json.dumps(facts, indent=1, sort_keys=True).splitlines()
    return [with_sorted_unions(line) if '"type": ' in line else line for line in lines]


def with_sorted_unions(text: str) -> str:
    """Return a type with the members of each Union in alphabetical order.

    The order says nothing, and is not upstream's alone: Python's typing gives back an equal Union that another package
    has written before.
    """
    before, union, rest = text.partition("Union[")
    if not union:
        return text
    members, depth, end = [""], 0, 0
    for end, letter in enumerate(rest):  # noqa: B007 - needed behind the loop
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth < 0:
            break
        if letter == "," and depth == 0:
            members.append("")
        else:
            members[-1] += letter
    inside = ",".join(sorted(map(with_sorted_unions, members)))
    return f"{before}Union[{inside}{with_sorted_unions(rest[end:])}"


def main(arguments: list[str] | None = None) -> int:
    """Show the drift, and return 1 where there is some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--write", type=Path, help="folder for what was read")
    parser.add_argument("--diff", type=Path, help="file for the drift, empty where there is none; written last")
    options = parser.parse_args(arguments)
    try:
        version = importlib.import_module("tensorrt_llm").__version__
    except ImportError as exc:
        sys.exit(f"{exc}; run this where TensorRT-LLM is installed, as in NVIDIA's container")
    folder = nearest_facts(version)
    known = load_facts(folder)
    dumped = dump(known)
    if options.write:
        options.write.mkdir(parents=True, exist_ok=True)
        for file, facts in dumped.items():
            text = json.dumps({"source_version": version, **facts}, indent=1)
            (options.write / f"{file}.json").write_text(text + "\n", encoding="utf-8")
    found = drift(known, dumped)
    if options.diff:
        options.diff.write_text(found, encoding="utf-8")
    print(found or f"tensorrt_llm {version} is as the facts of {folder.name} say")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
