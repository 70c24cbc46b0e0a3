# SPDX-License-Identifier: Apache-2.0
"""The look at its release that precedes every way to start an engine."""

import shutil
import sys
from pathlib import Path

import pytest
from demo_release import DEMO_MODEL, alter_a_byte, write_demo_release, write_gpu_release

from ensemble_configs.render.release_file import load_release
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from serving.doctor.preflight import check
from serving.doctor.release_check import built_release_of, is_verified, refuse_unfit_releases, unverified_places
from serving.engine_process.engine_sources import OwnedEngine
from serving.supervisor.messages import releases_of
from trireme.base.errors import ServerError, SpecError


@pytest.fixture(autouse=True)
def cache_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def deployment(release: Path, **engine: object) -> DeploymentSpec:
    return DeploymentSpec.model_validate(
        {"name": "test", "release_dir": release, "engine": {"provider": "openvino", "num_kv_blocks": 64, **engine}}
    )


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_demo_release(tmp_path / "release")


def test_the_server_is_not_started_on_an_altered_release(release: Path) -> None:
    check(deployment(release))
    alter_a_byte(release / "engine/openvino_model.bin")
    with pytest.raises(SpecError, match=rf"^\[INVALID_SPEC .*{release}: file engine/openvino_model.bin: found SHA-256"):
        check(deployment(release))


def test_what_no_manifest_lists_is_unverified(release: Path, tmp_path: Path) -> None:
    spec = deployment(release)
    assert (unverified_places(spec.model), is_verified(spec.model)) == ([], True)
    assert releases_of(spec) == "release 1"
    by_engine = engine_deployment(release / "engine")  # named without the release, and found all the same
    assert is_verified(by_engine.model) is True
    plain = engine_deployment(Path(shutil.copytree(release / "engine", tmp_path / "plain")))
    assert (unverified_places(plain.model), is_verified(plain.model)) == ([tmp_path / "plain"], False)
    assert releases_of(plain) == "release 1, unverified"
    beside = engine_deployment(release / "engine", draft_dir=tmp_path / "plain", is_prefix_caching=False)
    assert unverified_places(beside.model) == [tmp_path / "plain"]
    simulated = engine_deployment(None, provider="simulated", max_seq_len=64)
    assert (unverified_places(simulated.model), is_verified(simulated.model)) == ([], None)


def engine_deployment(folder: Path | None, **engine: object) -> DeploymentSpec:
    named = {} if folder is None else {"dir": folder}
    data = {"provider": "openvino", "num_kv_blocks": 64, **named, **engine}
    return DeploymentSpec.model_validate({"name": "test", "tokenizer": {"dir": DEMO_MODEL / "target"}, "engine": data})


def test_the_engine_process_loads_no_altered_release(release: Path, tmp_path: Path) -> None:
    write_repository(deployment(release), root=tmp_path / "models", source="test")
    folder = tmp_path / "models/tensorrt_llm/1"
    spec = load_release(folder)
    assert spec.release_dir == release
    engine = OwnedEngine(folder)
    channel, info = engine.connect()
    assert info.vocab_size == 4096
    channel.close()
    engine.discard(ends_itself=True)
    alter_a_byte(release / "engine/openvino_model.bin")
    with pytest.raises(ServerError, match=r"file engine/openvino_model.bin: found SHA-256"):
        OwnedEngine(folder).connect()


def test_a_wrong_tensorrt_llm_is_found_without_importing_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release = write_gpu_release(tmp_path / "release")
    site = tmp_path / "site"
    (site / "tensorrt_llm").mkdir(parents=True)
    (site / "tensorrt_llm/__init__.py").write_text("raise SystemExit('imported')")
    (site / "tensorrt_llm-1.1.0.dist-info").mkdir()
    (site / "tensorrt_llm-1.1.0.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: tensorrt_llm\nVersion: 1.1.0\n"
    )
    monkeypatch.syspath_prepend(str(site))
    with pytest.raises(SpecError, match=r"tensorrt_llm: found 1\.1\.0, wanted 1\.2\.1; install tensorrt_llm==1\.2\.1"):
        refuse_unfit_releases(deployment(release, provider="tensorrt", num_kv_blocks=None).model)
    assert "tensorrt_llm" not in sys.modules


def test_an_engine_beside_a_manifest_is_checked_without_being_called_a_release(release: Path) -> None:
    spec = DeploymentSpec.model_validate(
        {
            "name": "test",
            "tokenizer": {"dir": release / "tokenizer"},
            "engine": {"provider": "openvino", "dir": release / "engine", "num_kv_blocks": 64},
        }
    ).model
    refuse_unfit_releases(spec)
    (release / "engine/more").touch()
    with pytest.raises(SpecError, match="file engine/more: found a file that the manifest does not list"):
        refuse_unfit_releases(spec)


def test_an_engine_that_is_no_release_is_served_as_it_is() -> None:
    spec = DeploymentSpec.model_validate(
        {
            "name": "test",
            "tokenizer": {"dir": DEMO_MODEL / "target"},
            "engine": {"provider": "openvino", "dir": DEMO_MODEL / "openvino/target"},
        }
    ).model
    assert built_release_of(spec) is None


def test_a_release_dir_without_a_manifest_is_refused(release: Path) -> None:
    (release / "release.json").unlink()
    with pytest.raises(SpecError, match=r"manifest: found the release .* has no release.json"):
        refuse_unfit_releases(deployment(release).model)
