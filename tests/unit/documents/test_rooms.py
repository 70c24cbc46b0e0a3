# SPDX-License-Identifier: Apache-2.0
"""Rooms stay narrow and modules short: what a newcomer can look over, and read in one sitting."""

import os
import shutil
import statistics
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from trireme.base.project_files import CODE_ROOT

MAX_MODULES, MAX_LINES, MAX_MEDIAN_LINES = 21, 350, 110
NO_CODE = ("build", "dist", "tests")  # at the root; what is hidden is none either


def modules_of(root: Path) -> list[Path]:
    """Return the modules of code below a folder: those that git knows, or without git all that are there."""
    found = [path for path in tracked(root) or walked(root) if (root / path).is_file()]
    return sorted(path for path in found if path.parts[0] not in NO_CODE)


def tracked(root: Path) -> list[Path]:
    """Return the modules that git knows below a folder; none where there is no git, or the folder is none of its."""
    if shutil.which("git") is None:
        return []
    asked = ["git", "-C", str(root), "ls-files", "-z", "*.py"]
    told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
    return [Path(name) for name in told.split("\0") if name]


def walked(root: Path) -> list[Path]:
    """Return all modules below a folder, without looking into folders that hold no code."""
    found = []
    for folder, folders, names in os.walk(root):
        none = NO_CODE if Path(folder) == root else ()
        folders[:] = [name for name in folders if not name.startswith(".") and name not in none]
        found += [(Path(folder) / name).relative_to(root) for name in names if name.endswith(".py")]
    return found


def wide_rooms(root: Path) -> list[str]:
    rooms = Counter(path.parent for path in modules_of(root) if path.name != "__init__.py")
    return [
        f"{room} has {count} modules, and a room may have {MAX_MODULES}; find the second room inside"
        for room, count in sorted(rooms.items())
        if count > MAX_MODULES
    ]


def num_lines(root: Path) -> dict[Path, int]:
    return {path: len((root / path).read_text(encoding="utf-8").splitlines()) for path in modules_of(root)}


def long_modules(root: Path) -> list[str]:
    return [
        f"{path} has {count} lines, and a module may have {MAX_LINES}; find the second idea inside"
        for path, count in num_lines(root).items()
        if count > MAX_LINES
    ]


def median_lines(root: Path) -> float:
    return statistics.median(count for path, count in num_lines(root).items() if path.name != "__init__.py")


def test_no_room_is_too_wide() -> None:
    assert not wide_rooms(CODE_ROOT)


def test_no_module_is_too_long() -> None:
    assert not long_modules(CODE_ROOT)


def test_the_usual_module_is_short() -> None:
    median = median_lines(CODE_ROOT)
    assert median <= MAX_MEDIAN_LINES, f"half of all modules have more than {median:g} lines"


def test_without_git_the_same_modules_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    by_git = set(modules_of(CODE_ROOT))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert set(modules_of(CODE_ROOT)) >= by_git


def test_a_room_that_is_too_wide_and_a_module_that_is_too_long_are_named_with_their_counts(tmp_path: Path) -> None:
    for folder, count in {"wide": 22, "narrow": 21, "tests": 30, ".hidden": 30, "build": 30}.items():
        (tmp_path / folder).mkdir()
        for number in range(count):
            (tmp_path / folder / f"m{number}.py").write_text("x = 1\n" * 350)
        (tmp_path / folder / "__init__.py").touch()
    (tmp_path / "narrow" / "m0.py").write_text("x = 1\n" * 351)

    (room,) = wide_rooms(tmp_path)
    (module,) = long_modules(tmp_path)

    assert room.startswith("wide has 22 modules")
    assert module.startswith("narrow/m0.py has 351 lines")
    assert median_lines(tmp_path) == 350
