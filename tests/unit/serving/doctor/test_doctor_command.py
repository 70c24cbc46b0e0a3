# SPDX-License-Identifier: Apache-2.0
"""`trireme doctor`, which tells all that is wrong with a release here and exits 1, or says briefly that it is fine."""

import json
import subprocess
from pathlib import Path

import pytest
from command_here import run_here
from demo_release import alter_a_byte, write_demo_release, write_gpu_release

from ensemble_configs.releases.file_hashes import HashMemory
from ensemble_configs.releases.release_manifest import address, load_manifest, seal
from ensemble_configs.releases.release_parts import EvaluationResult, Override

pytestmark = pytest.mark.slow


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_demo_release(tmp_path / "release")


def doctor(tmp_path: Path, *arguments: object, is_terminal: bool = False) -> subprocess.CompletedProcess[str]:
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "200", "PATH": "/usr/bin:/bin"}
    env |= {"FORCE_COLOR": "1"} if is_terminal else {}  # to which rich writes as to a terminal
    return run_here("doctor", *arguments, cwd=tmp_path, env=env)


def write_deployment(tmp_path: Path, **changes: object) -> Path:
    path = tmp_path / "d.yaml"
    path.write_text(json.dumps({"name": "x", "engine": {"provider": "openvino"}} | changes))  # JSON is YAML
    return path


def test_a_release_that_can_be_served_is_told_in_a_few_lines(tmp_path: Path, release: Path) -> None:
    result = doctor(tmp_path, release)
    assert (result.returncode, result.stderr) == (0, "")
    first, second, *rest = result.stdout.splitlines()
    assert first == f"demo-int8  {address(release)}"
    assert second == "can be served here"
    assert [line.split()[0] for line in rest] == ["model", "engine", "files", "memory", "quality"]


def test_the_quality_and_who_promoted_it_all_the_same_are_told(tmp_path: Path, release: Path) -> None:
    results = tuple(EvaluationResult(task="t", metric="m", value=1, passed=passed) for passed in (True, False, None))
    override = Override(reason="a test", who="me")
    seal(release, load_manifest(release).model_copy(update={"evaluation": results, "override": override}))
    assert "3 results, 1 failed; promoted all the same by me: a test" in doctor(tmp_path, release).stdout


def test_everything_that_is_wrong_is_told_at_once_and_whole_where_no_terminal_has_columns(tmp_path: Path) -> None:
    release = write_gpu_release(tmp_path / "release", tp_size=2, world_size=2)
    alter_a_byte(release / "engine/rank1.engine")
    result = doctor(tmp_path, release)
    assert result.returncode == 1
    assert "cannot be served here: 4 found" in result.stdout
    for word in ("engine/rank1.engine: ", "tensorrt_llm: ", "10.14.1.48", "0 GPUs here"):
        assert word in result.stdout
    assert len(result.stdout.splitlines()) == 1 + 4 + 1, "the release, a line for each, and how many"
    table = doctor(tmp_path, release, is_terminal=True).stdout
    for word in ("cannot be served here: 4 found", "engine/rank1.engine", "10.14.1.48", "next step"):
        assert word in table


def test_programs_read_json(tmp_path: Path, release: Path) -> None:
    [good] = json.loads(doctor(tmp_path, release, "--json").stdout)
    assert good == {
        "release": str(release),
        "name": "demo-int8",
        "address": address(release),
        "is_fit": True,
        "findings": [],
    }
    (release / "engine/openvino_model.bin").unlink()
    result = doctor(tmp_path, release, "--json")
    [bad] = json.loads(result.stdout)
    assert result.returncode == 1
    assert [finding["check"] for finding in bad["findings"]] == ["file engine/openvino_model.bin"]
    assert set(bad["findings"][0]) == {"check", "found", "wanted", "next_step"}


def test_the_deployments_limits_count(tmp_path: Path, release: Path) -> None:
    path = write_deployment(
        tmp_path, release_dir=str(release), engine={"provider": "openvino", "max_seq_len": 4096, "num_kv_blocks": 10**9}
    )
    result = doctor(tmp_path, "--deployment", path, "--json")
    [answer] = json.loads(result.stdout)
    assert [finding["check"] for finding in answer["findings"]] == ["engine.max_seq_len", "memory"]
    assert doctor(tmp_path, release).returncode == 0


def test_half_a_release_is_told_and_not_served(tmp_path: Path, release: Path) -> None:
    (release / "release.json").unlink()
    assert doctor(tmp_path, release).returncode == 1
    [answer] = json.loads(doctor(tmp_path, release, "--json").stdout)
    [finding] = answer["findings"]
    assert (answer["is_fit"], answer["address"], finding["check"]) == (False, None, "manifest")
    assert "not a release, or one that was not finished" in finding["found"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param([], "name the folder of a release", id="nothing"),
        pytest.param(["x", "--without-gpu"], "--without-gpu is for --tensorrt-llm alone", id="half an option"),
        pytest.param(["--deployment", "d.yaml", "elsewhere"], "not elsewhere; set release_dir", id="another"),
        pytest.param(["--deployment", "plain.yaml"], "plain.yaml serves no built release", id="none"),
        pytest.param(["--deployment", "key.yaml"], "release_public_key is set, but simulated is no release", id="key"),
    ],
)
def test_what_cannot_be_looked_at_is_an_error_of_usage(
    tmp_path: Path, release: Path, arguments: list[str], words: str
) -> None:
    write_deployment(tmp_path, release_dir=str(release))
    simulated = {"name": "x", "tokenizer": {"dir": "x"}, "engine": {"provider": "simulated"}}
    (tmp_path / "plain.yaml").write_text(json.dumps(simulated))
    (tmp_path / "key.yaml").write_text(json.dumps(simulated | {"release_public_key": "k.pem"}))
    result = doctor(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr


def test_files_are_read_again_only_if_asked_for(tmp_path: Path, release: Path) -> None:
    model = release / "engine/openvino_model.bin"
    memory = tmp_path / "cache/trireme/hashes"
    # Files that changed within two seconds are not remembered: a memory of them is put there by hand.
    stat = model.stat()
    stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev]
    name = HashMemory.of_folder(release)._file.name
    memory.mkdir(parents=True)
    (memory / name).write_text(json.dumps({str(model): ["0" * 64, *stamp]}))
    [answer] = json.loads(doctor(tmp_path, release, "--json").stdout)
    assert [finding["found"] for finding in answer["findings"]] == ["SHA-256 " + "0" * 64]
    assert doctor(tmp_path, release, "--full").returncode == 0
