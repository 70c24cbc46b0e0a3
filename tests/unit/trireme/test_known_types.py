# SPDX-License-Identifier: Apache-2.0
"""Threads that read the same struct for the first time do not end the process, and nothing is read without that."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trireme.base.known_types import known
from trireme.base.project_files import CODE_ROOT

ROOMS = (
    *("trireme", "clients", "serving", "gateway", "build_engines"),
    *("ensemble_configs", "model_repository", "observability"),
)
READERS = {f"msgspec.{name}": 1 for name in ("convert", "json.decode", "msgpack.decode", "yaml.decode", "toml.decode")}
READERS |= {"msgspec.json.Decoder": 0, "msgspec.msgpack.Decoder": 0}
# What is kept in no class, for it is of these alone, is known from the beginning.
PLAIN = {"dict", "list", "tuple", "set", "str", "int", "float", "bool", "bytes", "object", "Any", "msgspec"}

# Each round has structs of its own: a struct is learnt once in a process.
RACE = """
import sys, threading, types
import msgspec
from trireme.base.known_types import known

SOURCE = '''
import msgspec
class Inner(msgspec.Struct, array_like=True):
    a: "int | None" = None
    b: "dict[str, float] | None" = None
class Line(msgspec.Struct, array_like=True):
    x: "int"
    y: "Inner"
    z: "dict[str, Inner] | None" = None
    w: "list[Inner] | None" = None
'''
DATA = b'[1, [2, {"k": 1.0}], {"q": [1]}, [[1]]]'
sys.setswitchinterval(1e-6)


def read(kind, barrier, found):
    barrier.wait()
    found.append(msgspec.json.decode(DATA, type=kind if "unknown" in sys.argv else known(kind)))


for number in range(int(sys.argv[1])):
    module = types.ModuleType(f"round_{number}")
    sys.modules[module.__name__] = module
    exec(SOURCE, module.__dict__)
    barrier, found = threading.Barrier(4), []
    threads = [threading.Thread(target=read, args=(module.Line, barrier, found)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4 and all(line == found[0] for line in found)
    del sys.modules[module.__name__]
print("done")
"""


def race(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", RACE, *arguments]
    return subprocess.run(command, cwd=CODE_ROOT, capture_output=True, text=True, check=False)


def test_threads_may_read_a_struct_that_none_has_read_before() -> None:
    found = race("500")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr


def test_without_it_such_threads_end_the_process() -> None:
    # As soon as this fails, msgspec has mended it, and `known` may go.
    assert any(race("1500", "unknown").returncode == -11 for _ in range(5))


def test_a_type_comes_back_as_it_is() -> None:
    assert known(list[int]) == list[int]
    assert known(int | None) == int | None


def unknown_reads(path: Path) -> Iterator[str]:
    """Yield where a file reads data as a type that msgspec may not know."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call) or (place := READERS.get(ast.unparse(node.func))) is None:
            continue
        named = [keyword.value for keyword in node.keywords if keyword.arg == "type"]
        kinds = named or node.args[place : place + 1]
        for kind in kinds:
            names = {each.id for each in ast.walk(kind) if isinstance(each, ast.Name)}
            is_known = isinstance(kind, ast.Call) and ast.unparse(kind.func) == "known"
            if not is_known and not names <= PLAIN:
                yield f"{path.relative_to(CODE_ROOT)}:{node.lineno}: {ast.unparse(node)}"


def test_all_that_is_read_is_read_as_a_known_type() -> None:
    files = [path for room in ROOMS for path in (CODE_ROOT / room).rglob("*.py") if path.name != "known_types.py"]
    assert len(files) > 500
    assert [place for path in files for place in unknown_reads(path)] == []


@pytest.mark.parametrize(
    "read", ["msgspec.json.decode(data, type=Line)", "msgspec.convert(data, list[Line])", "msgspec.json.Decoder(Line)"]
)
def test_a_read_that_is_not_is_found(tmp_path: Path, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "CODE_ROOT", tmp_path)
    path = tmp_path / "reads.py"
    path.write_text(f"{read}\n")
    assert list(unknown_reads(path)) == [f"reads.py:1: {read}"]
