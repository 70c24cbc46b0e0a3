# SPDX-License-Identifier: Apache-2.0
"""A build that fails, is interrupted, killed, or meets a full disk: what is left, and what `--resume` makes of it."""

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from build_runs import DEMO, arguments, build, built, content, write_recipe
from trtllm_tools import FakeTools, write_fake_tools

from ensemble_configs.releases.release_manifest import verify
from trireme.base.project_files import CODE_ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> FakeTools:
    return write_fake_tools(tmp_path_factory.mktemp("tools"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # what files hashed to


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    return write_recipe(tmp_path)


def test_a_failed_stage_leaves_the_old_release_whole_and_the_new_one_absent(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    old = built(build(tools, recipe, out))
    before = content(old)
    other = write_recipe(tmp_path, max_batch_size=8)
    failed = build(tools, other, out, FAKE_TOOL_FAILS="trtllm-build")
    assert failed.returncode == 2
    assert "stage engine failed: trtllm-build ended with status 1" in failed.stderr
    assert "    RuntimeError: trtllm-build fails as it was told to" in failed.stderr
    assert "04-engine.log" in failed.stderr
    assert content(old) == before
    assert [path.name for path in out.iterdir() if not path.name.startswith(".")] == [old.name]
    refused = build(tools, other, out)
    assert refused.returncode == 2
    assert (
        "with finished stages: look, calibration, checkpoint; go on from there with --resume, or start anew"
        in refused.stderr
    )
    resumed = build(tools, other, out, "--resume")
    assert "[3/5] checkpoint: finished earlier" in resumed.stderr
    assert verify(built(resumed)).limits.max_batch_size == 8


def test_a_refused_checkpoint_leaves_nothing_and_is_refused_before_any_tool_runs(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    (checkpoint / "model.safetensors").write_bytes((DEMO / "model.safetensors").read_bytes()[:-1000])
    result = build(tools, recipe, tmp_path / "out", checkpoint=checkpoint)
    assert result.returncode == 2
    assert "model.safetensors" in result.stderr
    assert not list((tmp_path / "out").iterdir())


def test_ctrl_c_keeps_what_is_finished(tools: FakeTools, recipe: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        arguments(tools, recipe, out),
        env=tools.environment() | {"FAKE_TOOL_DELAY_S": "1"},
        cwd=CODE_ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr:
        for line in process.stderr:
            if line.startswith("[4/5] engine: trtllm-build"):
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
    assert process.wait(timeout=30) == 130
    assert "interrupted; finished stages are kept" in said
    assert not list(out.glob(".building-*/*.partial"))
    resumed = build(tools, recipe, out, "--resume")
    assert content(built(resumed)) == content(built(build(tools, recipe, tmp_path / "elsewhere")))
    assert "checkpoint: finished earlier" in resumed.stderr


def test_of_two_builds_at_once_the_second_says_that_it_waits_and_both_name_the_release(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = subprocess.Popen(
        arguments(tools, recipe, out),
        env=tools.environment() | {"FAKE_TOOL_DELAY_S": "2"},
        cwd=CODE_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert first.stderr is not None
    for line in first.stderr:
        if line.startswith("[3/5]"):
            break
    second = build(tools, recipe, out)
    said, errors = first.communicate(timeout=60)
    assert first.returncode == 0, errors
    assert Path(said.split()[0]) == built(second)
    assert "another build has" in second.stderr
    assert [path.name for path in out.iterdir() if path.name != ".logs"] == [built(second).name]


def killed_at(process: "subprocess.Popen[bytes]", delay_s: float) -> bool:
    """Kill a build after a delay; return True if it was still running."""
    try:
        process.wait(timeout=delay_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True
    return False


def check_a_killed_build(
    tools: FakeTools, recipe: Path, tmp_path: Path, seeds: Sequence[int], *, kills_each: int
) -> None:
    """Kill -9 at a random moment, go on, and compare with a build that nobody disturbed."""
    environment = tools.environment() | {"FAKE_TOOL_DELAY_S": "0.2"}
    whole = tmp_path / "whole"
    start = time.monotonic()
    subprocess.run(arguments(tools, recipe, whole), env=environment, cwd=CODE_ROOT, capture_output=True, check=True)
    whole_s = time.monotonic() - start
    undisturbed = content(next(whole.glob("demo-*")))
    for seed in seeds:
        out = tmp_path / f"killed-{seed}"
        chance = random.Random(seed)
        for _ in range(kills_each):  # a resumed build is killed, too
            delay_s = chance.uniform(0.3, 1.0) * whole_s
            while True:
                process = subprocess.Popen(
                    arguments(tools, recipe, out, "--resume"),
                    env=environment,
                    cwd=CODE_ROOT,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                was_killed = killed_at(process, delay_s)
                for release in out.glob("demo-*"):
                    verify(release)  # whole, or not there
                if was_killed:
                    break
                shutil.rmtree(out)  # it was over: another one is killed earlier
                delay_s /= 2
        assert content(built(build(tools, recipe, out, "--resume"))) == undisturbed, seed
        assert not list(out.glob(".building-*"))


def test_a_build_killed_at_any_moment_goes_on_to_the_same_release(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    check_a_killed_build(tools, recipe, tmp_path, range(3), kills_each=1)


@pytest.mark.soak
def test_twenty_builds_killed_at_any_moment_go_on_to_the_same_release(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    check_a_killed_build(tools, recipe, tmp_path, range(20), kills_each=2)


def check_builds_that_die(tmp_path: Path, every: int) -> None:
    script = CODE_ROOT / "tests/fakes/crashing_builds.py"
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "crashes"), f"--every={every}"],
        env=os.environ | {"PYTHONPATH": f"{CODE_ROOT}:{script.parent}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 50


def test_a_build_that_dies_before_any_change_to_the_disk_is_made_up_for(tmp_path: Path) -> None:
    check_builds_that_die(tmp_path, every=7)


@pytest.mark.soak
def test_a_build_that_dies_before_each_change_to_the_disk_is_made_up_for(tmp_path: Path) -> None:
    check_builds_that_die(tmp_path, every=1)


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_to_load(
    tools: FakeTools, recipe: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"

    def small_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))  # the kernel refuses more, as a full disk does

    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(DEMO, checkpoint)
    result = subprocess.run(
        arguments(tools, recipe, out, checkpoint=checkpoint),
        env=tools.environment(),
        cwd=CODE_ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=small_files,
    )
    assert result.returncode == 2
    assert "stage checkpoint failed" in result.stderr
    assert "is full" in result.stderr
    assert not list(out.glob("demo-*"))
    assert not list(out.glob(".building-*/checkpoint*"))
    built(build(tools, recipe, out, "--resume", checkpoint=checkpoint))
