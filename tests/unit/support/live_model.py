# SPDX-License-Identifier: Apache-2.0
"""The deployment of a server with two releases of one model, without the server."""

from pathlib import Path
from typing import Any

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.simulated_spec import SimulatedEngineSpec
from ensemble_configs.spec.release_spec import TokenizerSpec
from trireme.base.errors import Unavailable
from trireme.base.project_files import CODE_ROOT


class Live:
    """A server of a model with two releases."""

    def __init__(self, run_dir: Path, **model: object) -> None:
        engine = SimulatedEngineSpec(provider="simulated")
        tokenizer = TokenizerSpec(dir=CODE_ROOT / "examples/demo_model/target")
        other = {"release": 2, "engine": engine, "tokenizer": tokenizer}
        more: Any = {"name": "chat", "other_releases": (other,), **model}
        self.spec = DeploymentSpec.of_one(release=1, engine=engine, tokenizer=tokenizer, **more)
        self._run_dir = run_dir
        self.is_away = False

    def run_dir(self) -> Path:
        if self.is_away:
            raise Unavailable("it is being started", reason="starting")
        return self._run_dir
