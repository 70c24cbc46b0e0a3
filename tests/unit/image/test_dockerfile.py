# SPDX-License-Identifier: Apache-2.0
"""Faults that are found in the Dockerfile; `test_pod_of_chart.py` tries if what it copies is enough."""

import json
import subprocess
from pathlib import Path

import pytest
from chart_here import PYTHON, ROOT, needs_chart

pytestmark = [pytest.mark.slow, needs_chart]
DOCKERFILE = ROOT / "Dockerfile"


def hadolint(path: Path) -> list[str]:
    command = [str(PYTHON.parent / "hadolint"), "--format", "json", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return [each["code"] for each in json.loads(found.stdout)]


def checkov(path: Path) -> dict[str, int]:
    command = [
        str(PYTHON.parent / "checkov"),
        "-f",
        str(path),
        "--framework",
        "dockerfile",
        "--skip-download",
        "-o",
        "json",
    ]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    summary: dict[str, int] = json.loads(found.stdout)["summary"]
    return summary


def test_hadolint_finds_nothing() -> None:
    assert hadolint(DOCKERFILE) == []


def test_checkov_finds_nothing_but_what_is_explained_beside_it() -> None:
    summary = checkov(DOCKERFILE)
    assert (summary["failed"], summary["skipped"]) == (0, 1)
    assert summary["passed"] > 50


@pytest.mark.parametrize("line", ["USER 10001:10001\n", "HEALTHCHECK NONE\n"])
def test_they_would_find_something(tmp_path: Path, line: str) -> None:
    text = DOCKERFILE.read_text()
    assert line in text
    (tmp_path / "Dockerfile").write_text(text.replace(line, "RUN cd /tmp\n"))
    assert checkov(tmp_path / "Dockerfile")["failed"] == 1
    assert hadolint(tmp_path / "Dockerfile") == ["DL3003", "SC2164"]


def test_the_user_is_the_charts() -> None:
    values = (ROOT / "helm/trireme/values.yaml").read_text()
    assert "user: 10001\n  group: 10001\n" in values
    assert "--uid 10001 --gid 10001" in DOCKERFILE.read_text()


def test_the_project_goes_into_the_bases_own_environment() -> None:
    """An environment made from the base's would not see its packages; `test_gpu_image.py` builds the image."""
    text = DOCKERFILE.read_text()
    assert " -m venv" not in text
    assert "pip install" not in text
    assert "python3 /opt/trireme/scripts/gpu_image.py --into /opt/trireme-environment" in text
