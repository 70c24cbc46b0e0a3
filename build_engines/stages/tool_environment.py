# SPDX-License-Identifier: Apache-2.0
"""An environment of Python with a back end's tools: its interpreter, its packages and the commands run in it."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from build_engines.stages.stage_list import Command
from trireme.base.project_files import CODE_ROOT

_ENVIRONMENT = {"PYTHONPATH": str(CODE_ROOT), "PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True)
class ToolEnvironment:
    """An environment in which the programs of a back end run.

    Attributes:
        python: of the environment that `scripts/bootstrap.py` makes in a checkout.
        modules: with these beside Trireme, its own environment is taken; none: it never is.
        packages: with versions that go into the manifest, by name with underscores.
        environment: variables of the programs, besides those of every back end.
    """

    python: Path
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def found(self) -> Path | None:
        """Return the interpreter that has the tools: Trireme's own, or that of the checkout; None: neither has them."""
        if self.modules and all(find_spec(name) is not None for name in self.modules):
            return Path(sys.executable)
        return self.python if self.python.is_file() else None

    def versions(self) -> dict[str, str]:
        """Return the versions of `packages`; call `found` first."""
        python = self.found()
        assert python is not None, "a back end's check() comes first"
        return dict(_versions(python, self.packages))

    def command(self, module: str, argv: list[str]) -> Command:
        """Return the command that runs a module of `build_engines` in the environment."""
        program = (str(self.found() or self.python), "-m", f"build_engines.{module}", *argv)
        return Command(program, {**_ENVIRONMENT, **self.environment})


@cache
def _versions(python: Path, packages: tuple[str, ...]) -> dict[str, str]:
    code = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    answer = subprocess.run([python, "-I", "-c", code, *packages], capture_output=True, text=True, check=True)
    versions: dict[str, str] = json.loads(answer.stdout)
    return versions
