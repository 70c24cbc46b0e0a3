# SPDX-License-Identifier: Apache-2.0
"""The machine of a proof: its GPUs as the driver shows them, its packages, and its row of `gpus.yaml`."""

import csv
import os
import platform
import subprocess

import msgspec

from build_engines.checkpoint.gpus import Gpu, gpu_named, gpu_of_driver
from build_engines.prove.proof import GpuState, ProofMachine
from ensemble_configs.releases.machine import Machine
from serving.process.this_machine import read_machine
from trireme.base.errors import SpecError
from trireme.base.known_types import known
from trireme.base.provenance import cpu_model

_PACKAGES = (
    "tensorrt_llm", "tensorrt", "torch", "transformers", "nvidia_modelopt", "mpi4py", "tritonclient", "numpy",
    "tokenizers", "trireme",
)  # fmt: skip
_QUERY = ("name", "driver_version", "power.limit", "clocks.max.sm", "ecc.mode.current", "mig.mode.current")
_TIMEOUT_S = 60.0


class NoGpuError(SpecError):
    """The lack of a GPU that a process here would see."""


def read_proof_machine() -> tuple[ProofMachine, Machine]:
    """Return the machine, for the record and for checks.

    Raises:
        NoGpuError: no GPU; the message says why.
    """
    machine = read_machine(_PACKAGES, is_asking_for_gpus=True)
    if not machine.gpus:
        why = machine.why_no_gpus or "CUDA_VISIBLE_DEVICES hides them all"
        raise NoGpuError(
            f"no GPU here: {why}; run this on a machine that has one, in the container "
            "nvcr.io/nvidia/tritonserver:26.07-trtllm-python-py3 started with --gpus all",
            field="gpu",
        )
    more = _driver_rows()
    gpus = [
        msgspec.convert(
            gpu.model_dump(include={"name", "sm", "memory_bytes"}) | more.get(gpu.name, {}), known(GpuState)
        )
        for gpu in machine.gpus
    ]
    found = ProofMachine(
        gpus=gpus,
        versions={"python": platform.python_version(), **machine.packages},
        container=os.environ.get("NVIDIA_TRITON_SERVER_VERSION"),  # of NVIDIA's alone
        cpu=cpu_model(),
        num_cpus=os.cpu_count() or 0,
        kernel=platform.release(),
    )
    return found, machine


def gpu_row(wanted: str, machine: ProofMachine) -> Gpu:
    """Return the datasheet of the GPU: by name, or with "auto" by the driver's name.

    Raises:
        SpecError: no row has that name, or the row is of another SM.
    """
    first = machine.gpus[0]
    gpu = gpu_of_driver(first.name) if wanted == "auto" else gpu_named(wanted)
    if gpu.sm != first.sm:
        raise SpecError(
            f"gpu {gpu.name} is SM {gpu.sm}, but {first.name} here is SM {first.sm}; name another row of "
            "build_engines/checkpoint/gpus.yaml with --gpu, or add one",
            field="gpu",
            value=gpu.name,
        )
    return gpu


def _driver_rows() -> dict[str, dict[str, object]]:
    """Return by GPU name what only a proof wants to know; empty where the driver does not tell."""
    command = ["nvidia-smi", f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    rows = [row for row in csv.reader(result.stdout.splitlines(), skipinitialspace=True) if len(row) == len(_QUERY)]
    return {
        name: {
            "driver": _text(driver),
            "power_limit_w": _number(power),
            "max_sm_clock_mhz": _number(clock),
            "ecc": _text(ecc),
            "mig": _text(mig),
        }
        for name, driver, power, clock, ecc, mig in rows
    }


def _text(value: str) -> str | None:
    return None if value.startswith("[") else value  # "[N/A]", "[Not Supported]"


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None
