# SPDX-License-Identifier: Apache-2.0
"""`trireme pull --deployment`: all releases of a deployment in the cache, and the deployment that serves them there."""

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from command_here import run_here
from demo_release import write_demo_release

from build_engines.cache.moved_deployment import moved_deployment, release_dirs
from ensemble_configs.releases.release_manifest import address, verify
from ensemble_configs.spec.deployment import DeploymentSpec, load_deployment

pytestmark = pytest.mark.slow

OPENVINO = {"provider": "openvino"}


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "hashes"))


def pull(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return run_here("pull", *arguments, cwd=folder)


def write(path: Path, **fields: object) -> Path:
    path.write_text(yaml.safe_dump({"name": "pair"} | fields))
    return path


def two_models(folder: Path) -> Path:
    """Make `a` and `b`; `b` is served by both models, once as a candidate; all paths are relative."""
    for name in ("a", "b"):
        write_demo_release(folder / "share" / name, name=name)
    chat = {
        "name": "chat",
        "release_dir": "share/a",
        "engine": {"provider": "openvino", "max_seq_len": 1024},
        "other_releases": [{"release": 2, "release_dir": "share/b", "engine": OPENVINO}],
        "canary": 2,
    }
    code = {"name": "code", "release_dir": "share/b", "tokenizer": {"dir": "words"}, "engine": OPENVINO}
    return write(folder / "d.yaml", triton={"host": "0.0.0.0"}, models=[chat, code])


def moved(spec: DeploymentSpec, folders: dict[Path, Path]) -> DeploymentSpec:
    """Return the spec with every path in old folders moved to the new ones, by replacement of text."""
    text = spec.model_dump_json()
    for old, new in folders.items():
        text = text.replace(f'"{old}', f'"{new}')
    return DeploymentSpec.model_validate_json(text)


def test_all_releases_of_a_deployment_are_pulled_each_once(tmp_path: Path) -> None:
    deployment = two_models(tmp_path)
    result = pull(tmp_path, "--deployment", "d.yaml", "--to", "cache", "--out", "here/local.yaml", "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    sources = [tmp_path / "share" / name for name in ("a", "b")]
    assert [each["source"] for each in facts["releases"]] == list(map(str, sources))
    assert facts["deployment"] == "here/local.yaml"
    folders = {source: tmp_path / "cache" / address(source) for source in sources}
    assert [each["folder"] for each in facts["releases"]] == list(map(str, folders.values()))
    for folder in folders.values():
        verify(folder)
    assert load_deployment(tmp_path / "here/local.yaml") == moved(load_deployment(deployment), folders)
    assert result.stderr.splitlines() == [f"release {n} of 2: {source}" for n, source in enumerate(sources, 1)]


def test_a_second_pull_of_a_deployment_finds_all_there(tmp_path: Path) -> None:
    two_models(tmp_path)
    command = ("--deployment", "d.yaml", "--to", "cache", "--out", "local.yaml")
    assert pull(tmp_path, *command).stdout.count("copied") == 2
    first = (tmp_path / "local.yaml").read_text()
    result = pull(tmp_path, *command)
    assert result.stdout.count("was there already") == 2
    assert result.stdout.splitlines()[-1] == "serve it: trireme serve --deployment local.yaml"
    assert (tmp_path / "local.yaml").read_text() == first


def test_releases_of_one_deployment_do_not_evict_one_another(tmp_path: Path) -> None:
    two_models(tmp_path)
    result = pull(tmp_path, "--deployment", "d.yaml", "--to", "cache", "--out", "local.yaml", "--max-bytes", "8MB")
    assert result.returncode == 2  # each has more than 6 MB
    assert "of 1 other releases 1 are in use; raise --max-bytes" in result.stderr
    assert not (tmp_path / "local.yaml").exists()


def test_a_deployment_without_a_release_is_written_as_it_is(tmp_path: Path) -> None:
    deployment = write(tmp_path / "d.yaml", tokenizer={"dir": "words"}, engine={"provider": "simulated", "step_ms": 3})
    result = pull(tmp_path, "--deployment", "d.yaml", "--to", "cache", "--out", "sub/local.yaml")
    assert result.returncode == 0
    assert result.stdout.splitlines()[0] == "d.yaml names no release_dir; nothing is pulled"
    assert load_deployment(tmp_path / "sub/local.yaml") == load_deployment(deployment)
    result = pull(tmp_path, "--deployment", "d.yaml", "--to", "cache", "--out", "sub/local.yaml", "--json")
    assert json.loads(result.stdout) == {"deployment": "sub/local.yaml", "releases": []}


def test_paths_into_a_release_move_with_it_and_others_do_not(tmp_path: Path) -> None:
    release = tmp_path / "big"
    engine = {"provider": "openvino", "draft_dir": "big/draft", "is_prefix_caching": False, "lora_file": "biggest.bin"}
    spec = load_deployment(write(tmp_path / "d.yaml", release_dir="big", engine=engine))
    assert release_dirs(spec) == [release]
    (tmp_path / "local.yaml").write_text(moved_deployment(spec, {release: Path("/cache/0")}))
    [model] = load_deployment(tmp_path / "local.yaml").models
    assert model.release_dir == Path("/cache/0")
    assert model.tokenizer.dir == Path("/cache/0/tokenizer")
    assert model.engine.provider == "openvino"
    assert model.engine.dir == Path("/cache/0/engine")
    assert model.engine.draft_dir == Path("/cache/0/draft")
    assert model.engine.lora_file == tmp_path / "biggest.bin"


def test_of_releases_that_lie_in_each_other_a_path_moves_with_the_inner_one(tmp_path: Path) -> None:
    outer, inner = tmp_path / "a", tmp_path / "a" / "b"
    other = {"release": 2, "release_dir": "a/b", "engine": OPENVINO}
    fields = {"release_dir": "a", "engine": OPENVINO, "other_releases": [other]}
    spec = load_deployment(write(tmp_path / "d.yaml", **fields))
    (tmp_path / "local.yaml").write_text(moved_deployment(spec, {outer: Path("/cache/0"), inner: Path("/cache/1")}))
    releases = load_deployment(tmp_path / "local.yaml").releases
    assert [release.tokenizer.dir for release in releases] == [Path("/cache/0/tokenizer"), Path("/cache/1/tokenizer")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "cache"], "name the folder of a release, or a deployment that serves some (--deployment)"),
        (["r", "--to", "cache", "--deployment", "d.yaml", "--out", "o"], "RELEASE and --deployment exclude each other"),
        (["--to", "cache", "--deployment", "d.yaml"], "--deployment needs --out"),
        (["r", "--to", "cache", "--out", "o"], "--out is where a deployment goes; name one (--deployment)"),
        (["--to", "cache", "--deployment", "x.yaml", "--out", "o"], "cannot read the deployment file x.yaml"),
        (["--to", "cache", "--deployment", "d.yaml", "--out", "o"], "share/a does not exist; build the release again"),
    ],
    ids=["nothing", "both", "no out", "only out", "no file", "no release"],
)
def test_what_cannot_be_pulled_is_refused_before_anything_is(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    write(tmp_path / "d.yaml", release_dir="share/a", engine=OPENVINO)
    result = pull(tmp_path, *arguments)
    assert (result.returncode, result.stdout) == (2, "")
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["d.yaml"]
