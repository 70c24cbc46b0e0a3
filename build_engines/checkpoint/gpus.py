# SPDX-License-Identifier: Apache-2.0
"""GPUs by their datasheets (`gpus.yaml`)."""

from functools import cache
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field

from ensemble_configs.spec.base import Positive, Spec
from ensemble_configs.spec.validation import validate
from trireme.base.errors import SpecError

_TABLE = Path(__file__).with_name("gpus.yaml")

PositiveFloat = Annotated[float, Field(gt=0)]

# GPUs that people ask for and that TensorRT-LLM does not run on. Sources: its support matrix, whose oldest row is
# Ampere (SM 80, 86), and its issues 2620 (T4) and 2400 (V100).
_TOO_OLD = "TensorRT-LLM needs SM 80 (Ampere) or later"
_OF_OTHERS = "TensorRT-LLM runs on NVIDIA's GPUs alone"
_UNSERVED = {
    "v100": f"is SM 70, and {_TOO_OLD}",
    "t4": f"is SM 75, and {_TOO_OLD}: T4 was dropped with version 0.14",
    "rtx-2080-ti": f"is SM 75, and {_TOO_OLD}",
    **dict.fromkeys(
        ("mi210", "mi250x", "mi300a", "mi300x", "mi325x", "mi350x", "mi355x"), f"is AMD's, and {_OF_OTHERS}"
    ),
    **dict.fromkeys(("gaudi-2", "gaudi-3"), f"is Intel's, and {_OF_OTHERS}"),
}


class Tflops(Spec):
    """Dense peaks in TFLOP/s, by number format; None where the GPU does not support the format."""

    fp16: PositiveFloat
    int8: PositiveFloat
    fp8: PositiveFloat | None = None
    fp4: PositiveFloat | None = None

    def __getitem__(self, compute: str) -> float:
        """Return the peak for a number format, in TFLOP/s.

        Raises:
            KeyError: the GPU does not support the format.
        """
        peak: float | None = getattr(self, compute, None)
        if peak is None:
            raise KeyError(compute)
        return peak


class Gpu(Spec):
    """A GPU's datasheet; the fields are explained in the table, `gpus.yaml`."""

    name: str
    title: str
    sm: Positive
    memory_gib: PositiveFloat
    bandwidth_gbs: PositiveFloat
    tflops: Tflops
    nvlink_gbs: Annotated[float, Field(ge=0)]
    nvlink_domain: Positive
    is_bridged: bool = False
    pcie_gbs: PositiveFloat
    is_verified: bool
    driver_names: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Return the memory that a program sees, in bytes."""
        return int(self.memory_gib * 2**30)

    @property
    def link_gbs(self) -> float:
        """Return the bandwidth to the next GPU of the node, one direction, in GB/s."""
        return self.nvlink_gbs or self.pcie_gbs

    def is_joined_by_nvlink(self, num_gpus: int) -> bool:
        """Return True if NVLink joins so many GPUs; else PCIe does, within a node."""
        return self.nvlink_gbs > 0 and num_gpus <= self.nvlink_domain


@cache
def gpus() -> dict[str, Gpu]:
    """Return every GPU by name, in the table's order."""
    rows = yaml.safe_load(_TABLE.read_text(encoding="utf-8"))
    return {gpu.name: gpu for gpu in (validate(Gpu, row, source=_TABLE) for row in rows)}


def gpu_named(name: str) -> Gpu:
    """Return the GPU with a name or a title, in any case.

    Raises:
        SpecError: the table has no such GPU, or TensorRT-LLM does not run on it; the message says why.
    """
    wanted = name.lower()
    for gpu in gpus().values():
        if wanted in {gpu.name, gpu.title.lower()}:
            return gpu
    reason = _UNSERVED.get(wanted, "is not known here")
    raise SpecError(f"gpu {name!r} {reason}; there are {', '.join(gpus())}", field="gpu", value=name)


def gpu_of_driver(name: str) -> Gpu:
    """Return the GPU that `nvidia-smi` reports by a name.

    Raises:
        SpecError: no row has that name; the message says what a row needs.
    """
    for gpu in gpus().values():
        if name in gpu.driver_names:
            return gpu
    raise SpecError(
        f"the driver calls this GPU {name!r}, and no row of build_engines/checkpoint/gpus.yaml has that among its "
        "driver_names; "
        "add the name to the row of this GPU, or a new row with its datasheet's figures: name, title, sm, memory_gib, "
        "bandwidth_gbs, tflops, nvlink_gbs, nvlink_domain, pcie_gbs, is_verified. Where a row is close enough, name it "
        "with --gpu",
        field="gpu",
        value=name,
    )
