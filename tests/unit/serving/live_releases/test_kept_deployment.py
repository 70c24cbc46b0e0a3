# SPDX-License-Identifier: Apache-2.0
"""A rollout's result that outlives the server; the deployment file takes precedence once it changes."""

from pathlib import Path

import pytest

from ensemble_configs.changes.release_changes import promoted, release_of, with_candidate
from ensemble_configs.spec.deployment import DeploymentSpec, override_triton
from serving.live_releases.kept_deployment import KeptDeployment


def deployment(seed: int = 1) -> DeploymentSpec:
    return DeploymentSpec.of_one(
        name="d", tokenizer={"dir": Path("/models/tokenizer")}, engine={"provider": "simulated", "seed": seed}
    )


def after_a_rollout(spec: DeploymentSpec) -> DeploymentSpec:
    second = release_of(spec.model, 1).model_copy(update={"release": 2})
    added = with_candidate(spec, spec.model, second)
    return promoted(added, added.model, 2)


def test_the_next_start_serves_what_was_served_last(tmp_path: Path) -> None:
    path, file = tmp_path / "served.json", deployment()
    served = after_a_rollout(file)
    KeptDeployment(path, file).keep(override_triton(served, http_port=9000))
    found = KeptDeployment(path, deployment()).load()
    assert found == served, "without what the command line said of ports"


def test_a_file_that_says_something_else_goes_first(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    KeptDeployment(path, deployment()).keep(after_a_rollout(deployment()))
    assert KeptDeployment(path, deployment(seed=7)).load() == deployment(seed=7)


def test_back_at_the_file_nothing_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "served.json"
    kept = KeptDeployment(path, deployment())
    kept.keep(after_a_rollout(deployment()))
    kept.keep(deployment())
    assert not path.exists()
    assert kept.load() == deployment()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"file_sha256": 1}'])
def test_what_cannot_be_read_counts_as_nothing(tmp_path: Path, text: str) -> None:
    path = tmp_path / "served.json"
    path.write_text(text)
    assert KeptDeployment(path, deployment()).load() == deployment()
