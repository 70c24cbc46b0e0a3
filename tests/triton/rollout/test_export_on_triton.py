# SPDX-License-Identifier: Apache-2.0
"""A rollout on the real server, followed as Argo Rollouts would follow it."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from argo_analysis import run_phase
from rollout_site import PATIENCE_S, STEPS, Site, Texts
from streams_under_change import RoutedLoad

LOOK_S = 0.3


def export(site: Site, *args: str) -> Any:
    command = [sys.executable, "-m", "trireme", "rollout", "export", *args]
    return yaml.safe_load(subprocess.run(command, cwd=site.folder, stdout=subprocess.PIPE, check=True).stdout)


def ask(url: str) -> Mapping[str, Any] | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as found:
            return dict(json.load(found))
    except (urllib.error.URLError, ConnectionError):
        return None


def as_argo(metric: Mapping[str, Any], args: Mapping[str, str]) -> str:
    """Return the phase in which one step's analysis ends, at another interval."""
    url = metric["provider"]["web"]["url"].replace("{{args.url}}", args["url"])
    measured: list[Mapping[str, Any] | None] = []
    end_s = time.monotonic() + PATIENCE_S
    while (phase := run_phase(metric, measured, args)) == "Running":
        assert time.monotonic() < end_s, measured[-1]
        time.sleep(LOOK_S)
        measured.append(ask(url))
    return phase


@pytest.mark.soak
@pytest.mark.parametrize(
    ("engine", "end"),
    [
        pytest.param({"seed": 2}, "Successful", id="promoted"),
        pytest.param({"step_ms": 80.0}, "Failed", id="rolled back"),
    ],
)
def test_argo_goes_where_the_rollout_goes(site: Site, engine: dict[str, Any], end: str, texts: Texts) -> None:
    by_release = {1: texts[1]}
    template = export(site, "--format", "analysis-template", "--steps", STEPS, "--url", site.split_url)
    patch = export(site, "--format", "argo-rollout", "--steps", STEPS)
    [metric] = template["spec"]["metrics"]
    args = {each["name"]: each["value"] for each in template["spec"]["args"]}
    steps = [step["analysis"] for step in patch["spec"]["strategy"]["canary"]["steps"] if "analysis" in step]
    with RoutedLoad(site.server.url, site.split_url, by_release):
        running = site.start(site.candidate(**engine), options=("--lease-s", "2"))
        try:
            while ask(f"{site.split_url}/judgement") is None:
                assert running.poll() is None, running.communicate()[0]
                time.sleep(LOOK_S)
            found: list[str] = []
            for step in steps:
                found.append(as_argo(metric, args | {each["name"]: each["value"] for each in step["args"]}))
                if found[-1] != "Successful":
                    break
        finally:
            running.kill()  # at its end it would answer for another minute
            said, _ = running.communicate()
    assert found[-1] == end, said
    assert end == "Failed" or len(found) == len(steps)
