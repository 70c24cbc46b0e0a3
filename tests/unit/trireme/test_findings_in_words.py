# SPDX-License-Identifier: Apache-2.0
"""The words about a release that cannot be served: what a folder is, what nobody wrote, a line for each finding."""

from pathlib import Path

import pytest
from demo_release import write_gpu_release

from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.preflight import check_release
from ensemble_configs.releases.release_parts import ReleaseLimits
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.finding import Finding, refuse
from trireme.base.errors import SpecError

MACHINE = Machine.model_validate({"gpus": (), "free_host_bytes": 1 << 34, "packages": {}})


def test_a_default_that_nobody_wrote_is_told_as_one(tmp_path: Path) -> None:
    release = write_gpu_release(tmp_path / "short", limits=ReleaseLimits(max_seq_len=1024))
    engine = {"provider": "tensorrt"}
    spec = DeploymentSpec.model_validate({"name": "x", "release_dir": release, "engine": engine}).model
    [told] = [one for one in check_release(release, machine=MACHINE, deployment=spec) if "max_seq_len" in one.check]
    assert told.found == "2048, the default: the deployment does not set it"
    assert told.next_step == "set it to 1024 or less, or build the release for more"


@pytest.mark.parametrize(
    ("files", "words", "next_step"),
    [
        (
            ("config.json", "model.safetensors"),
            "it is a checkpoint, not a release",
            "`trireme build RECIPE --checkpoint",
        ),
        (
            ("config.json", "rank0.engine"),
            "it is an engine's folder, not a release",
            "with engine.dir and tokenizer.dir",
        ),
        (("openvino_model.xml",), "it is an engine's folder, not a release", "with engine.dir and tokenizer.dir"),
        (("notes.txt",), "not a release, or one that was not finished", "build the release again, or pull it again"),
    ],
)
def test_a_folder_without_a_manifest_is_told_what_it_is(
    files: tuple[str, ...], words: str, next_step: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    [finding] = check_release(tmp_path, machine=MACHINE)
    assert words in finding.found
    assert next_step in finding.next_step


def test_several_findings_have_a_line_each() -> None:
    one = Finding(check="a", found="x", wanted="y", next_step="do")
    with pytest.raises(SpecError) as single:
        refuse([one], source=Path("/r"))
    assert single.value.message == "/r: a: found x, wanted y; do"
    with pytest.raises(SpecError) as several:
        refuse([one] * 5, source=Path("/r"))
    line = "a: found x, wanted y; do"
    assert several.value.message.splitlines() == ["/r:", line, line, line, "and 2 more (`trireme doctor` lists all)"]
