# SPDX-License-Identifier: Apache-2.0
"""The input of a back end that plans a build, and its answer; `BACKENDS` is the table of back ends.

A back end is a module with two functions: ``check(job) -> list[Finding]`` says all that stands in the way, before any
work, and ``plan(job) -> BuildPlan`` gives the stages.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from build_engines.checkpoint.checkpoint_folder import CheckpointFiles
from build_engines.recipes.recipe import Recipe
from build_engines.stages.stage_list import Stage
from ensemble_configs.releases.machine import Machine
from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.spec.finding import Finding

# Where the checkpoint is in the work folder. Upstream's scripts look for parts of words ("mpt", "vila") in the path of
# a model and load it in another way if they find them, so paths of this machine are kept from them.
SOURCE = "source"


@dataclass(frozen=True)
class Tools:
    """Paths of upstream's scripts that no wheel brings, and of an environment that is not ours."""

    trtllm_examples: Path = Path("/app/examples")
    modelopt_examples: Path = Path("/app/modelopt/examples")
    compressor_venv: Path | None = None  # with llm-compressor


@dataclass(frozen=True)
class BuildJob:
    """A build to make: a checkpoint, a recipe and where the release goes.

    Attributes:
        is_dry_run: nothing is going to run: no file is hashed, and the machine need not be the one that will build.
    """

    recipe: Recipe
    checkpoint: CheckpointFiles
    machine: Machine
    tools: Tools = Tools()
    is_dry_run: bool = False

    @property
    def checkpoint_sha256(self) -> str:
        """Return the checkpoint's hash for the stages' keys; empty in a dry run, which has no use for it."""
        return "" if self.is_dry_run else self.checkpoint.sha256


@dataclass(frozen=True)
class BuildPlan:
    """A back end's plan for a build.

    Attributes:
        stages: the stages in order.
        parts: by stage, the folder of the release that gets its outputs; "." is the release itself.
        describe: returns the manifest, given the folder of the release with all files in it.
        links: files and folders of this machine by the names that they have in the work folder.
        notes: what the dry run should say beside the commands.
    """

    stages: tuple[Stage, ...]
    parts: Mapping[str, str]
    describe: Callable[[Path], ReleaseManifest]
    links: Mapping[str, Path] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class Backend(Protocol):
    """A module that builds for one provider."""

    def check(self, job: BuildJob) -> list[Finding]:
        """Return every finding against a job; empty: nothing that can be known before."""

    def plan(self, job: BuildJob) -> BuildPlan:
        """Return the plan of a job's stages."""


BACKENDS = {
    "tensorrt": "build_engines.tensorrt_llm.compiled_build",
    "pytorch": "build_engines.tensorrt_llm.pytorch_build",
    "openvino": "build_engines.openvino.openvino_build",
    "vllm": "build_engines.vllm.vllm_build",
}


def backend_of(recipe: Recipe) -> Backend:
    """Import and return the back end of a recipe."""
    return cast("Backend", importlib.import_module(BACKENDS[recipe.backend]))
