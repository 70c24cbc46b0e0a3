# SPDX-License-Identifier: Apache-2.0
"""The wheel outside of a checkout has all that the commands read; `test_wheel_served.py` serves it."""

import compileall
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from wheel_here import PROJECT, User, build_wheel, forbid_writing, open_folder

from ensemble_configs.render.helm_values import render_helm_values
from ensemble_configs.render.repository import DEFAULT_DEPLOYMENT
from ensemble_configs.spec.deployment import load_deployment
from trireme import client
from trireme.base import errors
from trireme.base.project_files import FILES_ROOT, IS_CHECKOUT, project_file

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def user(wheel: Path) -> Iterator[User]:
    """With the wheel in front of this environment's packages, whose own path to the project comes after it."""
    with open_folder() as folder:
        packages = folder / "site-packages"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
        compileall.compile_dir(packages, quiet=1)  # as pip does where it installs
        forbid_writing(packages)
        yield User(folder, Path(sys.executable), packages=packages)


def test_the_wheel_has_every_module_and_data_file_of_its_packages(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True, check=True)
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = ("build_engines/", "clients/", "ensemble_configs/", "gateway/", "observability/", "serving/", "trireme/")
    ours = {name for name in listed.stdout.splitlines() if name.startswith(packages)}
    deployments = {name for name in ours if name.startswith("ensemble_configs/deployments/")}
    assert ours - deployments - names == set()
    assert {f"trireme/data/{name}" for name in deployments} <= names
    assert not [name for name in names if "test" in name.split("/")[0] or name.endswith((".pyc", "model.safetensors"))]


def test_the_wheel_is_small(wheel: Path) -> None:
    assert wheel.stat().st_size < 12_000_000


def test_it_is_the_installed_one(user: User) -> None:
    program = "import trireme.base.project_files as p; print(p.IS_CHECKOUT, p.FILES_ROOT)"
    command = [*user.command([])[:-2], "-c", program]
    said = subprocess.run(command, cwd=user.folder, env=user.environment, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", f"{user.environment['PYTHONPATH']}/trireme/data"]
    assert IS_CHECKOUT
    assert FILES_ROOT == PROJECT


def test_the_default_deployment_is_rendered_where_one_works(user: User) -> None:
    assert "files written" in user.run("render")
    written = user.folder / "build/demo_cpu/model_repository"
    for config in (PROJECT / "model_repository").glob("*/config.pbtxt"):
        assert (written / config.parent.name / "config.pbtxt").read_text() == config.read_text()
    folder = written / "tensorrt_llm/1"
    engine = json.loads((folder / "release.json").read_text())["engine"]
    assert (folder / engine["dir"]).resolve().is_relative_to(user.environment["PYTHONPATH"])


def test_values_and_chart_of_helm(user: User) -> None:
    values = user.run("render", "--helm")
    source = "ensemble_configs/deployments/demo_cpu.yaml"
    assert values == render_helm_values(load_deployment(DEFAULT_DEPLOYMENT), source=source)
    chart = Path(user.run("render", "--chart").strip())
    files = {file.relative_to(chart): file.read_bytes() for file in chart.rglob("*") if file.is_file()}
    ours = project_file("helm/trireme")
    assert files == {file.relative_to(ours): file.read_bytes() for file in ours.rglob("*") if file.is_file()}


def test_plan_cost_and_doctor(user: User) -> None:
    planned = user.run("plan", "llama-3.1-70b", "--gpu", "h100", "--gpus", "4", "--isl", "1000", "--osl", "300")
    assert "h100" in planned.lower()
    assert "$" in user.run("cost", "examples/cost/halve_500k.yaml")
    assert "name the folder of a release" in user.run("doctor", is_refused=True)


def test_a_build_is_shown_without_being_done(user: User) -> None:
    shutil.copytree(PROJECT / "examples/demo_model/target", user.folder / "checkpoint")
    shown = user.run("build", "demo-int8", "--checkpoint", "checkpoint", "--out", "releases", "--dry-run")
    assert "nncf" in shown or "openvino" in shown
    assert not (user.folder / "releases").exists()


OTHERS = ("serve", "generate", "bench", "rollout", "batch", "observe", "evaluate", "pull")
SAY_EACH = """
import contextlib, io, json, sys
from trireme.commands import run_command
said = {}
for command in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()) as text, contextlib.suppress(SystemExit):
        run_command(command, ["--help"])
    said[command] = text.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def usages(user: User) -> dict[str, str]:
    """Return what each command says of itself, all asked in one process, as most modules are those of several."""
    command = [*user.command([])[:-2], "-c", SAY_EACH, *OTHERS]
    said = subprocess.run(command, cwd=user.folder, env=user.environment, capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(said.stdout)
    return found


@pytest.mark.parametrize("command", OTHERS)
def test_every_other_command_starts(usages: dict[str, str], command: str) -> None:
    assert f"Usage: trireme {command}" in usages[command]


def test_the_public_names_are_those_that_the_modules_have() -> None:
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    assert issubclass(errors.QueueFull, errors.Unavailable)
