# SPDX-License-Identifier: Apache-2.0
"""The search for the server, on PATH or in the record of `make setup`; a server that cannot work here is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton_python_backend_utils

from serving.process import installation
from serving.process.installation import TritonInstallation, find_triton
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT
from trireme.installing import triton_server
from trireme.installing.commands import SetupError

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(autouse=True)
def empty_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Set PATH to one empty folder."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.fixture
def record(tmp_path: Path) -> Path:
    """Write a record like that of `make setup`, in a project of its own."""
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
    assert env["PYTHONPATH"] == f"{CODE_ROOT}:/mine"
    assert env["LD_LIBRARY_PATH"] == "/lib/a:/lib/b:/lib/c"
    assert env["PYTHONNOUSERSITE"] == "1"
    assert env["RUN_DIR"] == "/run/x"
    assert env["COLOUR"] == "red"


def test_nothing_empty_is_added_to_a_search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    # An empty part of PYTHONPATH or LD_LIBRARY_PATH means the working directory.
    env = environment(monkeypatch)
    assert env["PYTHONPATH"] == str(CODE_ROOT)
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
    named = [path for path in (CODE_ROOT / "tests").rglob("*.py") if fake.parent.name in path.read_text()]
    assert named == []  # pyproject.toml alone has it, for pytest's own process


def test_the_committed_record_is_read_from_the_project() -> None:
    assert installation.RECORD == CODE_ROOT / ".tools" / "triton" / "installation.json"
    assert (CODE_ROOT / "pyproject.toml").is_file()


class TestFetching:
    """`trireme serve` where neither a checkout nor PATH has a server."""

    @pytest.fixture
    def prepared(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, object]]:
        calls: list[dict[str, object]] = []
        monkeypatch.setattr(installation, "IS_CHECKOUT", False)
        monkeypatch.setattr(installation, "TOOLS_ROOT", tmp_path / "cache" / "trireme")
        monkeypatch.setattr(triton_server, "prepare", lambda root, **how: calls.append({"root": root, **how}))
        return calls

    def test_it_is_fetched_for_this_python_and_shown(self, prepared: list[dict[str, object]], tmp_path: Path) -> None:
        installation.fetch_triton()
        root, lock = tmp_path / "cache" / "trireme", CODE_ROOT / "requirements" / "triton.txt"
        assert prepared == [{"root": root, "lock": lock, "python": Path(sys.executable), "shows_output": True}]

    def test_a_checkout_or_a_server_on_the_path_needs_none(
        self, prepared: list[dict[str, object]], monkeypatch: pytest.MonkeyPatch, empty_path: Path
    ) -> None:
        program = empty_path / "tritonserver"
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
        installation.fetch_triton()
        program.unlink()
        monkeypatch.setattr(installation, "IS_CHECKOUT", True)
        installation.fetch_triton()
        assert prepared == []

    @pytest.mark.usefixtures("prepared")
    def test_a_cache_that_cannot_be_written_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("a file")
        with pytest.raises(SpecError, match=r"cannot be put into .*cache/trireme: .*; set XDG_CACHE_HOME to a folder"):
            installation.fetch_triton()

    @pytest.mark.usefixtures("prepared")
    def test_what_failed_is_told_with_the_other_way(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(_root: Path, **_how: object) -> None:
            raise SetupError("no network")

        monkeypatch.setattr(triton_server, "prepare", fail)
        with pytest.raises(SpecError, match=r"cannot be fetched: no network; or put `tritonserver` on PATH"):
            installation.fetch_triton()
