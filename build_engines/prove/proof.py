# SPDX-License-Identifier: Apache-2.0
"""The findings of `trireme prove`, as data: one file for each GPU and day in `benchmarks/gpu/`."""

from pathlib import Path
from typing import Literal

import msgspec

from trireme.base.durable_files import write_atomically
from trireme.base.errors import SpecError
from trireme.base.known_types import known

FORMAT = 1


class GpuState(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU as `nvidia-smi` shows it; None: the driver does not tell."""

    name: str
    sm: int
    memory_bytes: int | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: float | None = None
    ecc: str | None = None
    mig: str | None = None


class ProofMachine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that a proof ran on."""

    gpus: list[GpuState]
    versions: dict[str, str]  # by package, with underscores; "python" among them
    container: str | None = None  # the NGC container's tag: 26.07
    cpu: str = ""
    num_cpus: int = 0
    kernel: str = ""


class ProofModel(msgspec.Struct, frozen=True, kw_only=True):
    """The model that was built and asked."""

    name: str
    architecture: str
    num_parameters: int
    format: str  # of its matrices: fp16 or bf16
    weights_sha256: str


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Differences of the installed package from the facts that our code is written against."""

    version: str
    diff: list[str] = []  # lines of a unified diff; none: it is as the facts say


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """A release that was built."""

    address: str
    recipe: dict[str, object]
    engine_bytes: int


class FailedCase(msgspec.Struct, frozen=True):
    """A failed case of the conformance suite."""

    name: str
    message: str


class Conformance(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's results in the suite that every engine must pass."""

    num_passed: int
    num_failed: int
    num_skipped: int
    failed: list[FailedCase] = []


class Figures(msgspec.Struct, frozen=True):
    """Means over the requests, and output tokens of all of them; in a ratio, predicted over measured for each."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """A provider's measurements under one load."""

    provider: str
    path: Literal["engine", "server"]  # the engine alone, in a process of its own; or the ensemble over gRPC
    concurrency: int
    isl: int
    osl: int
    num_requests: int
    measured: Figures
    ttft_p99_ms: float
    predicted: Figures | None = None  # None: the plan says nothing of it
    ratio: Figures | None = None


class CheckRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    name: str
    status: Literal["passed", "failed", "left out"]
    duration_s: float
    reason: str | None = None
    last_lines: list[str] = []  # the end of the output, where the check failed


class Proof(msgspec.Struct, kw_only=True):
    """A proof, filled check by check."""

    format: int = FORMAT
    date: str  # ISO 8601, UTC
    commit: str | None  # of this repository, "-dirty" where a file was changed or is new
    gpu: str  # a name of gpus.yaml
    engine: Literal["tensorrt_llm", "vllm"] = "tensorrt_llm"
    machine: ProofMachine
    model: ProofModel
    drift: Drift | None = None
    built: Built | None = None
    conformance: dict[str, Conformance] = msgspec.field(default_factory=dict)  # by provider
    bench: list[BenchRow] = msgspec.field(default_factory=list)
    steps: list[CheckRecord] = msgspec.field(default_factory=list)

    @property
    def failures(self) -> list[CheckRecord]:
        """Return the checks that failed."""
        return [check for check in self.steps if check.status == "failed"]

    @property
    def day(self) -> str:
        """Return the day, such as 2026-11-21."""
        return self.date[:10]


def proof_text(proof: Proof) -> str:
    """Return the proof as JSON, indented, for a file or a terminal."""
    return msgspec.json.format(msgspec.json.encode(proof), indent=1).decode() + "\n"


def write_proof(proof: Proof, folder: Path) -> Path:
    """Write `<gpu>_<date>.json`, with another engine's name between, whole or not at all, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = "" if proof.engine == "tensorrt_llm" else f"_{proof.engine}"
    path = folder / f"{proof.gpu}{engine}_{proof.day}.json"
    write_atomically(path, proof_text(proof))
    return path


def load_proofs(folder: Path) -> list[Proof]:
    """Return every proof in a folder, by file name; none where there is no folder.

    Raises:
        SpecError: a file is not what `write_proof` writes.
    """
    proofs = []
    for path in sorted(folder.glob("*.json")):
        try:
            proofs.append(msgspec.json.decode(path.read_bytes(), type=known(Proof)))
        except msgspec.MsgspecError as exc:
            raise SpecError(f"{path} is not a result of `trireme prove`: {exc}", file=path) from exc
    return proofs
