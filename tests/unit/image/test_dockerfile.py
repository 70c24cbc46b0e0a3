# SPDX-License-Identifier: Apache-2.0
"""Faults that are found in the Dockerfiles; `test_pod_of_chart.py` tries if what the first copies is enough."""

import json
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from chart_here import PYTHON, ROOT, needs_chart

from serving.engines.vllm.vllm_upstream import KNOWN_VERSIONS

pytestmark = [pytest.mark.slow, needs_chart]
DOCKERFILE = ROOT / "Dockerfile"
FOR_VLLM = ROOT / "Dockerfile.vllm"


def hadolint(path: Path) -> list[str]:
    command = [str(PYTHON.parent / "hadolint"), "--format", "json", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return [each["code"] for each in json.loads(found.stdout)]


FAULTS = ("USER 10001:10001\n", "HEALTHCHECK NONE\n")  # a line each, without which something is found


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return a Dockerfile without each of the lines."""
    text, found = DOCKERFILE.read_text(), {}
    for line in FAULTS:
        assert line in text
        found[line] = tmp_path_factory.mktemp("broken") / "Dockerfile"
        found[line].write_text(text.replace(line, "RUN cd /tmp\n"))
    return found


@pytest.fixture(scope="module")
def checked(broken: dict[str, Path]) -> dict[Path, Counter[str]]:
    """Return how many checks of checkov ended how, by file; all files in one process, which takes seconds to begin."""
    files = [DOCKERFILE, FOR_VLLM, *broken.values()]
    options = ["--framework", "dockerfile", "--skip-download", "-o", "json"]
    command = [str(PYTHON.parent / "checkov"), "-f", *map(str, files), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    results = json.loads(done.stdout)["results"]
    ends = ("passed", "failed", "skipped")
    return {
        file: Counter(end for end in ends for each in results[f"{end}_checks"] if Path(each["file_abs_path"]) == file)
        for file in files
    }


@pytest.mark.parametrize("file", [DOCKERFILE, FOR_VLLM], ids=lambda file: str(file.name))
def test_hadolint_finds_nothing(file: Path) -> None:
    assert hadolint(file) == []


@pytest.mark.parametrize("file", [DOCKERFILE, FOR_VLLM], ids=lambda file: str(file.name))
def test_checkov_finds_nothing_but_what_is_explained_beside_it(file: Path, checked: dict[Path, Counter[str]]) -> None:
    found = checked[file]
    assert (found["failed"], found["skipped"]) == (0, 1)
    assert found["passed"] > 50


@pytest.mark.parametrize("line", FAULTS)
def test_they_would_find_something(broken: dict[str, Path], checked: dict[Path, Counter[str]], line: str) -> None:
    assert checked[broken[line]]["failed"] == 1
    assert hadolint(broken[line]) == ["DL3003", "SC2164"]


def test_the_user_is_the_charts() -> None:
    values = (ROOT / "helm/trireme/values.yaml").read_text()
    assert "user: 10001\n  group: 10001\n" in values
    for file in (DOCKERFILE, FOR_VLLM):
        assert "--uid 10001 --gid 10001" in file.read_text()


def test_the_image_for_vllm_has_a_vllm_that_is_served() -> None:
    lock = (ROOT / "requirements/vllm-gpu.txt").read_text()
    (version,) = re.findall(r"^vllm==(\S+)", lock, re.MULTILINE)
    assert version.startswith(f"{KNOWN_VERSIONS[-1]}.")
    assert "--require-hashes" in FOR_VLLM.read_text()


def test_what_the_image_for_vllm_copies_is_there() -> None:
    sent = {line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    for line in re.findall(r"^COPY (.*)$", FOR_VLLM.read_text(), re.MULTILINE):
        *sources, _ = line.split()
        for source in sources:
            found = [path.relative_to(ROOT) for path in ROOT.glob(source)] if source != "." else []
            assert source == "." or any(sent & {str(path), path.parts[0]} for path in found), line


def test_the_project_goes_into_the_bases_own_environment() -> None:
    """An environment made from the base's would not see its packages; `test_gpu_image.py` builds the image."""
    text = DOCKERFILE.read_text()
    assert " -m venv" not in text
    assert "pip install" not in text
    assert "python3 /opt/trireme/scripts/gpu_image.py --into /opt/trireme-environment" in text
