# SPDX-License-Identifier: Apache-2.0
"""`scripts/gpu_image.py`: what it installs, what it leaves alone, and what it refuses before anything is changed."""

import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from scripts.base_packages import (
    Package,
    closure_conflicts,
    installed_packages,
    read_lock,
    read_requirements,
    replacement_conflicts,
)
from scripts.environments import lock_blocks
from trireme.base.project_files import CODE_ROOT

PLACE = Path("/base")
LOCK = """\
# comment
alpha==1.0 \\
    --hash=sha256:aa
    # via beta
beta==2.0 ; python_version < '3' \\
    --hash=sha256:bb
beta==2.1 ; python_version >= '3' \\
    --hash=sha256:cc
"""


def packages(**requires: list[str]) -> dict[str, Package]:
    """By name: version, and what it needs."""
    return {
        name: Package(name, version, PLACE, tuple(map(Requirement, needs)))
        for name, (version, *needs) in requires.items()
    }


# The rules


def test_of_a_package_with_markers_the_one_for_this_python_is_read() -> None:
    found = read_lock(LOCK)
    assert {name: entry.version for name, entry in found.items()} == {"alpha": "1.0", "beta": "2.1"}
    assert set(lock_blocks(LOCK)) == {"alpha", "beta"}
    assert "sha256:cc" in found["beta"].text


def test_what_fits_has_no_conflict_and_what_nobody_asks_for_is_not_looked_at() -> None:
    have = packages(a=["1.0", "b>=2", "c; extra == 'more'"], b=["2.1.dev3"], odd=["1", "b<1"])
    assert closure_conflicts([Requirement("a"), Requirement("b>=2")], have, {}) == []


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        pytest.param("a", "a 1.0 needs b<2; b 2.1 is in /base", id="another version"),
        pytest.param("d", "the project needs d; it is missing", id="missing"),
        pytest.param("e[grpc]", 'e 1.0 needs b>=3; extra == "grpc"; b 2.1 is in /base', id="of an extra"),
    ],
)
def test_a_conflict_names_who_needs_what_and_where_the_other_is(wanted: str, says: str) -> None:
    have = packages(a=["1.0", "b<2"], b=["2.1"], e=["1.0", "b>=3; extra == 'grpc'"])
    assert [str(found) for found in closure_conflicts([Requirement(wanted)], have, {})] == [says]


def test_an_override_takes_the_place_of_what_a_package_asks_for() -> None:
    have = packages(a=["1.0", "b<2"], b=["2.1"])
    assert closure_conflicts([Requirement("a")], have, {"b": SpecifierSet("<3")}) == []


def test_what_a_package_of_the_base_says_about_a_replacement_counts() -> None:
    have = packages(a=["1.0", "b<2"], b=["1.0"])
    assert [str(found) for found in replacement_conflicts({"b": "2.1"}, have)] == [
        "a 1.0 needs b<2; b 2.1 is in the lock"
    ]
    assert list(replacement_conflicts({"b": "1.9"}, have)) == []


def test_of_two_folders_with_one_package_the_first_counts(tmp_path: Path) -> None:
    for folder, version in (("x", "1"), ("y", "2")):
        write_package(tmp_path / folder, "thing", version)
    assert installed_packages([tmp_path / "x", tmp_path / "y"])["thing"].version == "1"


# The files in the repository


def test_the_locks_fit_what_is_asked_for_and_shadow_nothing_of_the_image_but_openai() -> None:
    files = {
        name: (CODE_ROOT / f"requirements/{name}").read_text()
        for name in ("gpu-base.txt", "gpu-image.txt", "gpu-image.in")
    }
    base, ours = read_lock(files["gpu-base.txt"]), read_lock(files["gpu-image.txt"])
    front = read_lock((CODE_ROOT / "requirements/gpu-image-in-front.txt").read_text())
    assert {name: (base[name].version, entry.version) for name, entry in front.items()} == {
        "openai": ("1.107.3", "1.109.1")
    }
    assert {name for name in base.keys() & ours.keys() if base[name].version != ours[name].version} == set()
    for requirement in read_requirements(files["gpu-image.in"]):
        locked = ours[requirement.name.lower()]
        assert requirement.specifier.contains(locked.version), requirement
    assert not {"torch", "tensorrt", "tensorrt-llm", "transformers", "setuptools"} & ours.keys()


def test_every_package_that_serving_needs_is_in_the_image() -> None:
    """A new dependency must be named in `requirements/gpu-image.in` as well."""
    text = (CODE_ROOT / "pyproject.toml").read_text()
    [plain] = re.findall(r"^dependencies = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)
    held = ("tracing", "kubernetes")
    extras = [re.findall(rf"^{name} = \[(.*?)^\]", text, re.MULTILINE | re.DOTALL)[0] for name in held]
    needed = {Requirement(line).name for line in re.findall(r'"([^"]+)"', "".join([plain, *extras]))}
    named = {each.name for each in read_requirements((CODE_ROOT / "requirements/gpu-image.in").read_text())}
    assert needed - named == set()


# The program


def write_package(folder: Path, name: str, version: str, *requires: str) -> None:
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info/METADATA"
    metadata.parent.mkdir(parents=True)
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    metadata.write_text("\n".join(lines) + "\n")


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Make an environment of metadata: a `tensorrt_llm` and all that the project needs but for the last package."""
    place = tmp_path / "base"
    venv.create(place, symlinks=True)
    site = site_of(place)
    for name, entry in read_lock((CODE_ROOT / "requirements/gpu-image.txt").read_text()).items():
        write_package(site, name, entry.version)
    write_package(site, "openai", "1.109.1")
    write_package(site, "tensorrt-llm", "1.2.1")
    write_package(site, "pip", "26.0")
    found = __import__("packaging").__path__[0]
    (site / "packaging").symlink_to(found)
    return place


def site_of(place: Path) -> Path:
    return place / f"lib/python3.{sys.version_info.minor}/site-packages"


def run(base: Path, tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        str(base / "bin/python"),
        str(CODE_ROOT / "scripts/gpu_image.py"),
        "--into",
        str(tmp_path / "env"),
        *options,
    ]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin"}
    )


def test_where_nothing_is_missing_nothing_is_installed_and_all_of_it_is_said(base: Path, tmp_path: Path) -> None:
    done = run(base, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "installing 0 behind them: none" in done.stdout
    assert "installing 0 in front of them: none" in done.stdout
    first, second, third = (site_of(base) / "trireme.pth").read_text().splitlines()
    assert (first, second) == (str(tmp_path / "env/packages"), str(CODE_ROOT))
    assert third == f"import sys; sys.path.insert(0, {str(tmp_path / 'env/in_front')!r})"
    record = json.loads((tmp_path / "env/installed.json").read_text())
    assert (record["behind"], record["in_front"], record["tensorrt_llm"]) == ({}, {}, "1.2.1")
    path = subprocess.run(
        [base / "bin/python", "-c", "import sys; print(*sys.path, sep='\\n')"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    order = [str(tmp_path / "env/in_front"), str(site_of(base)), str(tmp_path / "env/packages"), str(CODE_ROOT)]
    assert [path.index(place) for place in order] == sorted(path.index(place) for place in order)


def test_for_vllm_the_python_needs_no_engine_and_nothing_is_put_in_front(base: Path, tmp_path: Path) -> None:
    for name in ("tensorrt_llm", "openai"):
        for path in site_of(base).glob(f"{name}-*"):
            path.rename(tmp_path / path.name)
    done = run(base, tmp_path, "--for", "vllm")
    assert done.returncode == 0, done.stderr
    assert "installing 0 in front of them: none" in done.stdout
    record = json.loads((tmp_path / "env/installed.json").read_text())
    assert "tensorrt_llm" not in record
    assert record["kept"].keys() >= {"msgspec", "numpy", "pydantic"}


def test_it_can_be_run_again(base: Path, tmp_path: Path) -> None:
    assert run(base, tmp_path).returncode == 0
    again = run(base, tmp_path)
    assert again.returncode == 0, again.stderr
    assert "installing 0 behind them" in again.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "env"]


def test_what_an_earlier_run_put_into_another_folder_is_not_the_bases(base: Path, tmp_path: Path) -> None:
    assert run(base, tmp_path).returncode == 0
    [ours] = site_of(base).glob("msgspec-*")
    ours.rename(tmp_path / "env/packages" / ours.name)
    done = run(base, tmp_path, "--into", str(tmp_path / "other"))
    assert "installing 1 behind them: msgspec" in done.stdout
    assert "No module named pip" in done.stderr
    assert "pip ended with status 1" in done.stderr
    assert not (tmp_path / "other").exists()
    assert (site_of(base) / "trireme.pth").read_text().startswith(f"{tmp_path}/env/packages\n")


def test_packages_that_do_not_fit_are_named_with_what_to_do_and_nothing_is_changed(base: Path, tmp_path: Path) -> None:
    for old in site_of(base).glob("numpy-*"):
        old.rename(old.with_name("numpy-3.1.dist-info"))
        (old.with_name("numpy-3.1.dist-info") / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: numpy\nVersion: 3.1\n"
        )
    done = run(base, tmp_path)
    assert done.returncode == 1
    assert "these packages do not fit together; nothing was changed" in done.stderr
    assert f"the project needs numpy<3,>=1.26; numpy 3.1 is in {site_of(base)}" in done.stderr
    assert "--in-front numpy" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
    assert not (site_of(base) / "trireme.pth").exists()


@pytest.mark.parametrize(
    ("lost", "options", "words"),
    [
        pytest.param("tensorrt_llm", [], "has no tensorrt_llm; run it", id="another Python"),
        pytest.param("pip", [], "-m ensurepip` installs it", id="no pip"),
        pytest.param(
            None, ["--in-front", "torch"], "--in-front torch: it is not in requirements/gpu-image.txt", id="unlocked"
        ),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    base: Path, tmp_path: Path, lost: str | None, options: list[str], words: str
) -> None:
    for path in site_of(base).glob(f"{lost}-*"):
        path.rename(tmp_path / "lost")
    done = run(base, tmp_path, *options)
    assert done.returncode == 1
    assert words in done.stderr
    assert not (tmp_path / "env").exists()


def test_its_help_has_an_example(base: Path, tmp_path: Path) -> None:
    assert "example: python3 scripts/gpu_image.py --into" in run(base, tmp_path, "--help").stdout
