# SPDX-License-Identifier: Apache-2.0
"""The server is found on PATH or where `make setup` recorded it; one that could not work here is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils

from ensemble_configs.errors import SpecError
from serving.server import installation
from serving.server.installation import PROJECT_ROOT, TritonInstallation, find_triton

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def empty_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH with one folder, which is empty."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """A record as `make setup` writes it, in a project of its own."""
    path = tmp_path / "project" / ".tools" / "triton" / "installation.json"
    path.parent.mkdir(parents=True)
    write(path)
    return path


def write(path: Path, **changes: str) -> None:
    facts: dict[str, object] = {
        "tritonserver": ".tools/triton/bin/tritonserver",
        "backend_directory": "/elsewhere/backends",
        "library_path": [".tools/triton/lib", "/usr/lib/python"],
        "python_version": PYTHON,
    }
    path.write_text(json.dumps(facts | changes))


def test_a_server_on_the_path_is_taken_with_its_own_backends(empty_path: Path, record: Path) -> None:
    program = empty_path / "tritonserver"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert find_triton(record) == TritonInstallation(program, None, ())


def test_else_the_recorded_one_with_relative_paths_from_the_project(record: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    assert find_triton(record) == TritonInstallation(
        tritonserver=project / ".tools/triton/bin/tritonserver",
        backend_directory=Path("/elsewhere/backends"),
        library_path=(project / ".tools/triton/lib", Path("/usr/lib/python")),
    )


def test_none_at_all_is_refused_with_the_command_that_installs_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="install it with `make setup`"):
        find_triton(tmp_path / "no.json")


def test_one_for_another_python_is_refused(record: Path) -> None:
    write(record, python_version="3.8")
    with pytest.raises(SpecError, match=rf"this is Python {PYTHON}, but .* set up for Python 3\.8; run `make setup`"):
        find_triton(record)


def environment(monkeypatch: pytest.MonkeyPatch, **given: str) -> dict[str, str]:
    for name in ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    server = TritonInstallation(Path("/t"), None, (Path("/lib/a"), Path("/lib/b")))
    return server.environment(run_dir_variable="RUN_DIR", run_dir=Path("/run/x"))


def test_the_environment_puts_ours_first_and_keeps_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(monkeypatch, PATH="/bin", PYTHONPATH="/mine", LD_LIBRARY_PATH="/lib/c", COLOUR="red")
    assert env["PATH"] == f"{Path(sys.prefix) / 'bin'}:/bin"
    assert env["PYTHONPATH"] == f"{PROJECT_ROOT}:/mine"
    assert env["LD_LIBRARY_PATH"] == "/lib/a:/lib/b:/lib/c"
    assert env["PYTHONNOUSERSITE"] == "1"
    assert env["RUN_DIR"] == "/run/x"
    assert env["COLOUR"] == "red"


def test_nothing_empty_is_added_to_a_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty part of PYTHONPATH or LD_LIBRARY_PATH means the working directory.
    env = environment(monkeypatch)
    assert env["PYTHONPATH"] == str(PROJECT_ROOT)
    assert env["LD_LIBRARY_PATH"] == "/lib/a:/lib/b"
    assert env["PATH"] == f"{Path(sys.prefix) / 'bin'}:{os.defpath}"


def test_the_servers_own_module_comes_before_anybody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As 2.71 looks for it: PYTHONPATH first. 2.51 ignores PYTHONPATH.
    for folder in ("backends/python", "shadow"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "triton_python_backend_utils.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "shadow"))
    env = TritonInstallation(Path("/t"), tmp_path / "backends", ()).environment(
        run_dir_variable="RUN_DIR", run_dir=tmp_path
    )
    asked = [sys.executable, "-c", "import triton_python_backend_utils as found; print(found.__file__)"]
    found = subprocess.run(asked, env=env, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).parent == tmp_path / "backends" / "python"


def test_the_tests_fake_of_that_module_lies_where_no_process_of_a_test_looks() -> None:
    fake = Path(triton_python_backend_utils.__file__)
    assert list(fake.parent.glob("*.py")) == [fake], "a folder with more would be put on somebody's path for the others"
    named = [path for path in (PROJECT_ROOT / "tests").rglob("*.py") if fake.parent.name in path.read_text()]
    assert named == []  # pyproject.toml alone has it, for pytest's own process


def test_the_committed_record_is_read_from_the_project() -> None:
    assert installation.RECORD == PROJECT_ROOT / ".tools" / "triton" / "installation.json"
    assert (PROJECT_ROOT / "pyproject.toml").is_file()
