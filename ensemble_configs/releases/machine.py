# SPDX-License-Identifier: Apache-2.0
"""The parts of a machine that a release may need, as data; `serving.process.this_machine` reads them here."""

from pydantic import Field

from ensemble_configs.spec.base import Positive, Spec


class Gpu(Spec):
    """A GPU that a process on the machine would see."""

    name: str
    sm: Positive  # compute capability without the point: 90 for 9.0
    memory_bytes: int | None = None  # None: the driver does not tell, as where memory is the host's
    free_bytes: int | None = None


class Machine(Spec):
    """A node: its GPUs, memory and installed versions."""

    gpus: tuple[Gpu, ...] = ()
    why_no_gpus: str | None = None  # where there are none: no driver, for example
    free_host_bytes: int
    packages: dict[str, str] = Field(default={}, description="version by name with underscores, of what is installed")
