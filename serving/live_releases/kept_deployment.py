# SPDX-License-Identifier: Apache-2.0
"""The releases that a server served last, kept beside its deployment file: a rollout's result outlives the process.

The file takes precedence: once it changes, the kept releases are forgotten.
"""

import hashlib
import json
from pathlib import Path

from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.validation import validate
from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError


class KeptDeployment:
    """The kept releases of one deployment file, in `build/NAME/served.json`."""

    def __init__(self, path: Path, file: DeploymentSpec) -> None:
        """Args: `file` is what the deployment file says, without overrides of the command line."""
        self._path = path
        self._file = file
        self._digest = hashlib.sha256(file.model_dump_json().encode()).hexdigest()

    def load(self) -> DeploymentSpec:
        """Return the deployment that was served last, or else the file's; an unreadable record counts as none."""
        try:
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["file_sha256"] != self._digest:
                return self._file
            data = {name: getattr(self._file, name) for name in DeploymentSpec.model_fields}
            return validate(DeploymentSpec, data | {"models": kept["models"]}, source=self._path)
        except (OSError, ValueError, KeyError, TypeError, SpecError):
            return self._file

    def keep(self, served: DeploymentSpec) -> None:
        """Record a deployment as the one that the next start serves."""
        if served.models == self._file.models:
            self._path.unlink(missing_ok=True)
            return
        models = [model.model_dump(mode="json") for model in served.models]
        write_atomically(self._path, json.dumps({"file_sha256": self._digest, "models": models}, indent=1) + "\n")
