# SPDX-License-Identifier: Apache-2.0
"""The lives of a server's engines, as a rollout sees them."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from clients.rollout.local_server import Control, LocalServer
from ensemble_configs.spec.deployment import load_deployment
from serving.live_releases.live_deployment import LiveDeployment
from trireme.base.project_files import CODE_ROOT

STATUS = {
    "server_id": "a",
    "models": [{"name": "chat", "release": 1, "canary": 2, "on_trial": [], "engine_pids": {"1": 21, "2": 34}}],
}


class Status:
    """The control of a server, which says its status alone."""

    def __init__(self, status: Mapping[str, Any]) -> None:
        self.status = status

    def ask(self, operation: str) -> Mapping[str, Any]:
        assert operation == "status"
        return self.status

    def seen_from_here(self, status: Mapping[str, object]) -> Mapping[str, object]:
        return status


@pytest.mark.parametrize(
    ("change", "is_same"),
    [({}, True), ({"server_id": "b"}, False)],
    ids=["the same", "a container that is started anew, with the same process ids"],
)
def test_an_engine_that_is_started_anew_is_another_one(change: Mapping[str, object], is_same: bool) -> None:
    before, after = (LocalServer(cast("Control", Status(each)), None) for each in (STATUS, {**STATUS, **change}))
    assert (before.lives() == after.lives()) == is_same
    assert (before.stable_lives() == after.stable_lives()) == is_same
    assert before.lives() == {"server": "a", "2": 34}


def test_two_processes_of_one_deployment_are_told_apart() -> None:
    spec = load_deployment(CODE_ROOT / "ensemble_configs" / "deployments" / "demo_cpu.yaml")
    parts: dict[str, Any] = dict.fromkeys(("repository", "source", "start", "keep", "tell")) | {"load_timeout_s": 1.0}
    first, second = (LiveDeployment(spec, **parts).status() for _ in range(2))
    assert first["server_id"] != second["server_id"]
