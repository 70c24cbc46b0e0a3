# SPDX-License-Identifier: Apache-2.0
"""The key that keeps requests on one release is named in the deployment, and reaches the models."""

from pathlib import Path
from typing import Any

import pytest

from ensemble_configs.render.launch_flags import PrivatePorts, launch_flags
from ensemble_configs.render.sticky_keys import sticky_headers, sticky_parameters
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

PATTERN = "grpc-header-forward-pattern"


def deployment(*keys: str | None, **more: object) -> DeploymentSpec:
    tokenizer = {"dir": str(CODE_ROOT / "examples/demo_model/target")}
    models: list[dict[str, Any]] = [
        {"name": f"model_{number}", "engine": {"provider": "simulated"}, "tokenizer": tokenizer, **more}
        | ({} if key is None else {"sticky_key": key})
        for number, key in enumerate(keys)
    ]
    return validate(DeploymentSpec, {"name": "d", "models": models}, source=Path("d.yaml"))


def test_headers_of_all_models_reach_triton_and_so_do_those_of_frontends() -> None:
    spec = deployment("header:x-session", "header:x-user", "parameter:user", None)
    assert (sticky_headers(spec), sticky_parameters(spec)) == (["x-session", "x-user"], ["user"])
    assert dict(launch_flags(spec))[PATTERN] == "(?i)^(x-session|x-user)$"
    behind = dict(launch_flags(spec, PrivatePorts(1, 2, 3)))
    assert behind[PATTERN] == "(?i)^(x-session|x-user|trireme-stream)$"


def test_without_a_key_no_header_is_asked_for() -> None:
    assert PATTERN not in dict(launch_flags(deployment(None)))


@pytest.mark.parametrize("key", ["user", "header:X-User", "header:", "parameter:", "parameter:a b", "tenant:a", ""])
def test_a_key_that_is_none_is_refused_by_name(key: str) -> None:
    with pytest.raises(SpecError, match="sticky_key"):
        deployment(key)


def test_a_tenant_is_a_key_only_where_requests_may_have_one() -> None:
    with pytest.raises(SpecError, match="which only a release with admission takes"):
        deployment("tenant")
    assert deployment("tenant", admission={}).models[0].sticky_key == "tenant"
