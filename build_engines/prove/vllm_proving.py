# SPDX-License-Identifier: Apache-2.0
"""The checks of a proof for provider `vllm`, whose engine runs in vLLM's environment."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from build_engines.evaluation.vllm_side import is_for_cpus
from build_engines.prove.build_check import build_release, describe_release, longest_sequence, vllm_recipe
from build_engines.prove.check import CheckFailed
from build_engines.prove.conformance_check import run_suite
from build_engines.prove.proof import Drift
from build_engines.prove.proving import CHECKS, Proving
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.vllm.vllm_environment import check_environment, interpreter_of
from serving.engines.vllm.vllm_start import plan_vllm_start
from serving.engines.vllm.vllm_upstream import KNOWN_VERSIONS, check_version
from trireme.base.errors import SpecError
from trireme.base.project_files import CODE_ROOT

VLLM_CHECKS = CHECKS | {
    "facts": "compare the version of the installed vllm with those that provider vllm was written for",
    "build": "make a release of the checkpoint with `trireme build`",
}
_ASKS_VERSION = "import vllm.version as v; print('version:', v.__version__)"
_KV_BYTES = 1 << 30  # on a CPU


@dataclass
class VllmProving(Proving):
    """The checks of a proof for vLLM.

    Attributes:
        venv_dir: environment with vLLM; None: Trireme's own.
        device: `cpu` runs the checks on a build for CPUs, in tests: it proves nothing about a GPU.
    """

    venv_dir: Path | None = None
    device: str = "gpu"
    all_checks: ClassVar[Mapping[str, str]] = VLLM_CHECKS
    providers: ClassVar[tuple[str, ...]] = ("vllm",)

    @cached_property
    def _vllm(self) -> str:
        """Return the version of vLLM, which goes into the record.

        Raises:
            CheckFailed: there is none, it is too old, or it was built for CPUs.
        """
        try:
            check_environment(self._spec())
            if self.device == "gpu" and is_for_cpus(self.venv_dir):
                where = self.venv_dir or "Trireme's environment"
                raise CheckFailed(f"the vLLM in {where} is a build for CPUs; name one for GPUs with --vllm-venv")
            asked = subprocess.run(
                [*self._words(), "-c", _ASKS_VERSION], capture_output=True, text=True, check=False, cwd=self.work
            )
            lines = [line for line in asked.stdout.splitlines() if line.startswith("version: ")]
            if not lines:
                raise CheckFailed("vllm cannot be imported", asked.stderr.splitlines()[-20:])
            version = lines[-1].removeprefix("version: ")
            check_version(None, version)
        except SpecError as exc:
            raise CheckFailed(exc.message) from exc
        self.proof.machine.versions["vllm"] = version
        return version

    def _facts(self) -> None:
        known = self._vllm.startswith(tuple(f"{version}." for version in KNOWN_VERSIONS))
        told = f"vLLM {self._vllm} is newer than what provider vllm was written for: {', '.join(KNOWN_VERSIONS)}"
        self.proof.drift = Drift(version=self._vllm, diff=[] if known else [told])

    def _build(self) -> None:
        recipe = vllm_recipe(self.checkpoint, self.gpu)
        self.release = build_release(recipe, self.checkpoint.dir, self.work, [], self.timeout_s)
        self.proof.built = describe_release(self.release, recipe)

    def _conformance(self, provider: str) -> None:
        engine = self._engine(provider)
        if self.device == "cpu":  # blocks of 128 tokens, which a CPU has, the suite could not fill
            engine |= {"kv_block_tokens": 32, "kv_cache_bytes": 1 << 26}
        self._judge(provider, run_suite(provider, engine, self.work, self.timeout_s, program=self._program()))

    def _engine(self, provider: str) -> dict[str, object]:  # noqa: ARG002  the only one
        _ = self._vllm
        return self._fields()

    def _fields(self) -> dict[str, object]:
        folder = self.checkpoint.dir if self.release is None else self.release / "engine"
        found: dict[str, object] = {"dir": str(folder)}
        if self.venv_dir is not None:
            found["venv_dir"] = str(self.venv_dir)
        if self.device == "cpu":
            found |= {"device": "cpu", "kv_cache_bytes": _KV_BYTES, "is_compiled": False, "num_threads": 1}
        return found

    def _spec(self) -> VllmEngineSpec:
        fields = self._fields() | {"provider": "vllm", "max_seq_len": longest_sequence(self.checkpoint)}
        return VllmEngineSpec.model_validate(fields)

    def _program(self) -> list[object]:
        _ = self._vllm
        return list(self._words())

    def _words(self) -> list[str]:
        """Return Python with the variables that an engine's process has; of our code it sees all."""
        start = plan_vllm_start(self._spec(), os.environ, self.work)
        settings = dict(start.environment)
        python = Path(sys.executable)
        if self.venv_dir is not None:
            settings["PYTHONPATH"] = str(CODE_ROOT)
            python = interpreter_of(self.venv_dir)
        dropped = [word for name in start.dropped_variables for word in ("-u", name)]
        return ["env", *dropped, *(f"{name}={value}" for name, value in settings.items()), str(python)]
